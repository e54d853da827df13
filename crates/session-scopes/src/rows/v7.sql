-- Version 7 of the tables of stepfold-session-scopes, of both databases. Never changed once released: a new version is a
-- new file.

-- The limit to which a budget was raised in its window; 0 for one that was not.
ALTER TABLE stepfold_budgets ADD COLUMN raised_to BIGINT NOT NULL DEFAULT 0;

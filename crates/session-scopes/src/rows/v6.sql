-- Version 6 of the tables of stepfold-session-scopes, of both databases. Never changed once released: a new version is a
-- new file.

-- The time from which the sums of a budget count for nothing, some time after the end of its window; NULL for none.
ALTER TABLE stepfold_budgets ADD COLUMN kept_until BIGINT;
CREATE INDEX stepfold_budgets_ended ON stepfold_budgets (kept_until) WHERE kept_until IS NOT NULL;

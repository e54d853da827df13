-- Version 9 of the tables of stepfold-session-scopes, of both databases. Never changed once released: a new version is a
-- new file.

-- The name of the ring that holds the keys of users; NULL for a store without one. In one that has a ring, content is sealed.
ALTER TABLE stepfold_meta ADD COLUMN ring TEXT;

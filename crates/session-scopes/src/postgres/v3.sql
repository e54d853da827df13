-- Version 3 of the tables of stepfold-session-scopes. Never changed once released: a new version is a new file.

-- Search in the list of sessions: whether a run is unfinished in one, and its id with the beginning of its first
-- message, in lower case. No checksum has them: they are found out again from the events.
ALTER TABLE stepfold_sessions
    ADD COLUMN unfinished BOOLEAN NOT NULL DEFAULT FALSE, ADD COLUMN searched TEXT NOT NULL DEFAULT '';

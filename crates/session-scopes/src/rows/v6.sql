-- Version 6 of the tables of stepfold-session-scopes, of both databases. Never changed once released: a new version is a
-- new file.

-- The indexes of sessions for searches, by their numbers: a session that was never searched has none. A generation changes
-- with an erasure. A block has the messages of the events after `after` up to `last`: in shard 0 which these are, in the
-- others which hashes of words they have. All of it is found out again from the events.
CREATE TABLE stepfold_search (number BIGINT NOT NULL PRIMARY KEY, generation BIGINT NOT NULL);
CREATE TABLE stepfold_search_parts (
    number BIGINT NOT NULL, shard BIGINT NOT NULL, after BIGINT NOT NULL, last BIGINT NOT NULL,
    checksum BIGINT NOT NULL, body BYTEA NOT NULL,
    PRIMARY KEY (number, shard, after)
);

-- The time from which the sums of a budget count for nothing, some time after the end of its window; NULL for none.
ALTER TABLE stepfold_budgets ADD COLUMN kept_until BIGINT;
CREATE INDEX stepfold_budgets_ended ON stepfold_budgets (kept_until) WHERE kept_until IS NOT NULL;

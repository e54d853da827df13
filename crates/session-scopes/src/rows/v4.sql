-- Version 4 of the tables of stepfold-session-scopes, of both databases. Never changed once released: a new version is a
-- new file.

-- The sums of budgets, in the unit of each: billionths of a dollar, tokens or requests.
CREATE TABLE stepfold_budgets (
    budget TEXT NOT NULL PRIMARY KEY, settled BIGINT NOT NULL, reserved BIGINT NOT NULL
);

-- Requests to models whose amounts were reserved: a row for each that was sent. `state` is 0 for one under way, 1 for one
-- with actual amounts, 2 for one that counts as its estimate. `amounts` is JSON: what it reserved, by budget.
CREATE TABLE stepfold_spend (
    id TEXT NOT NULL PRIMARY KEY,
    app TEXT NOT NULL, owner TEXT NOT NULL, session TEXT NOT NULL,
    token BIGINT, expires BIGINT NOT NULL, at BIGINT NOT NULL, state BIGINT NOT NULL,
    model TEXT NOT NULL, amounts TEXT NOT NULL,
    input_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL, nanodollars BIGINT
);
CREATE INDEX stepfold_spend_open ON stepfold_spend (app, owner, session) WHERE state = 0;
CREATE INDEX stepfold_spend_by_time ON stepfold_spend (app, at, id);

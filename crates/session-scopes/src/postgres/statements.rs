//! Every statement, so that all of them can be prepared before the first one runs.

/// A statement of the list below.
#[derive(Clone, Copy)]
pub(super) struct Sql(&'static str);

impl Sql {
    pub(super) const fn text(self) -> &'static str {
        self.0
    }
}

macro_rules! statements {
    ($($name:ident = $text:expr;)*) => {
        $(pub(super) const $name: Sql = Sql($text);)*
        /// All statements.
        pub(super) const ALL: &[Sql] = &[$($name),*];
    };
}

/// The number of the session that is addressed by $1, $2 and $3.
macro_rules! number {
    () => {
        "(SELECT number FROM stepfold_sessions WHERE app = $1 AND owner = $2 AND id = $3)"
    };
}

/// The time in microseconds, by the server's clock.
macro_rules! now {
    () => {
        "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
    };
}

/// The row of a session, with its id and the time.
macro_rules! session {
    () => {
        concat!(
            "SELECT number, version, oldest, created, updated, parent_id, parent_version, id, ",
            "life, claims, claim_owner, claim_expires, inbox, ",
            now!(),
            " FROM stepfold_sessions"
        )
    };
}

/// The number of the scope of app $1 and owner $2.
macro_rules! scope {
    () => {
        "(SELECT scope FROM stepfold_scopes WHERE app = $1 AND owner = $2)"
    };
}

/// The rows of a state as it was at version $2 in stream $1.
macro_rules! as_of {
    ($before:literal, $columns:literal, $after:literal) => {
        concat!(
            $before,
            " SELECT ",
            $columns,
            " FROM (SELECT key, version, schema, value, generation, start, length ",
            "FROM stepfold_cells WHERE stream = $1 AND version <= $2 ",
            "UNION ALL SELECT key, version, schema, value, generation, start, length ",
            "FROM stepfold_past WHERE stream = $1 AND until > $2 AND version <= $2) AS state ",
            $after,
        )
    };
}

/// Versions of the history of session $1 that are after $2, by a rule, newest first.
macro_rules! in_history {
    ($columns:literal, $rule:literal, $order:literal, $limit:literal) => {
        concat!(
            "SELECT e.* FROM stepfold_lineage l CROSS JOIN LATERAL (SELECT ",
            $columns,
            " FROM stepfold_events e WHERE e.stream = l.stream AND e.version > GREATEST(l.after, $2) ",
            "AND e.version <= l.upto ",
            $rule,
            " ORDER BY e.version ",
            $order,
            " LIMIT ",
            $limit,
            ") AS e WHERE l.number = $1 ORDER BY e.version ",
            $order,
            " LIMIT ",
            $limit,
        )
    };
}

statements! {
    ADD_SCHEMA = "INSERT INTO stepfold_schemas (text) SELECT $1::text WHERE NOT EXISTS \
        (SELECT 1 FROM stepfold_schemas WHERE md5(text) = md5($1::text) AND text = $1::text)";
    FIND_SCHEMA = "SELECT MIN(id) FROM stepfold_schemas WHERE md5(text) = md5($1::text) AND text = $1::text";
    READ_SCHEMA = "SELECT text FROM stepfold_schemas WHERE id = $1";

    READ_SESSION = concat!(session!(), " WHERE app = $1 AND owner = $2 AND id = $3");
    LOCK_SESSION = concat!(session!(), " WHERE app = $1 AND owner = $2 AND id = $3 FOR UPDATE");
    LIST_SESSIONS = concat!(
        session!(), " WHERE app = $1 AND owner = $2 AND (updated, number) < ($3, $4) ",
        "ORDER BY updated DESC, number DESC LIMIT $5"
    );
    NEXT_NUMBER = "SELECT COALESCE(MAX(number), 0) + 1 FROM stepfold_sessions";
    ADD_SESSION = "INSERT INTO stepfold_sessions \
        (app, owner, id, version, oldest, created, updated, parent_id, parent_version, life) \
        VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9) ON CONFLICT DO NOTHING RETURNING number";
    DELETE_SESSION = "DELETE FROM stepfold_sessions WHERE number = $1";
    LOCK_TENANT = "SELECT pg_advisory_xact_lock(hashtext('stepfold ' || $1::text), hashtext($2::text))";
    MOVE_OLDEST = "UPDATE stepfold_sessions SET oldest = $2 WHERE number = $1";

    READ_LINEAGE = concat!(
        "SELECT stream, after, upto FROM stepfold_lineage WHERE number = ", number!(),
        " ORDER BY after DESC, upto DESC"
    );
    READ_REWINDS = concat!(
        "SELECT r.stream, r.version, r.target FROM stepfold_lineage l JOIN stepfold_rewinds r ",
        "ON r.stream = l.stream WHERE l.number = ", number!(), " ORDER BY r.version"
    );
    LISTED_REWINDS = "SELECT l.number, r.version, r.target FROM stepfold_lineage l JOIN stepfold_rewinds r \
        ON r.stream = l.stream AND r.version > l.after AND r.version <= l.upto \
        WHERE l.number = ANY($1::bigint[]) ORDER BY r.version";
    ADD_LINEAGE = "INSERT INTO stepfold_lineage (number, stream, after, upto) VALUES ($1, $2, $3, $4)";
    DELETE_LINEAGE = "DELETE FROM stepfold_lineage WHERE number = $1";

    EVENTS = in_history!("e.version, e.id, e.at, e.body", "", "DESC", "$3");
    LAST_BEFORE = in_history!("e.version", "AND e.at < $3", "DESC", "1");
    FIRST_SINCE = in_history!("e.version", "AND e.at >= $3", "ASC", "1");
    REPEATED = concat!(
        "SELECT version, body = $5 AND at = $6 FROM stepfold_events WHERE stream = ", number!(), " AND id = $4"
    );
    ADD_EVENT = "INSERT INTO stepfold_events (stream, version, id, at, body) VALUES ($1, $2, $3, $4, $5)";
    MOVE_VERSION = "UPDATE stepfold_sessions SET version = $2, updated = $3 WHERE number = $1";
    ADD_REWIND = "INSERT INTO stepfold_rewinds (stream, version, target) VALUES ($1, $2, $3)";
    // An event without writes, in one statement. No row: something is not as expected, look closer. With $8 it is
    // written under the claim of this token: held for $9 from now on once half of that is gone, released without $9.
    APPEND_PLAIN = concat!("WITH moved AS (UPDATE stepfold_sessions SET version = version + 1, updated = $6, \
        claim_owner = CASE WHEN $8::bigint IS NULL OR $9::bigint IS NOT NULL THEN claim_owner END, \
        claim_expires = CASE WHEN $8::bigint IS NULL THEN claim_expires WHEN $9::bigint IS NULL THEN NULL \
        WHEN claim_expires >= ", now!(), " + $9::bigint / 2 THEN claim_expires \
        ELSE GREATEST(claim_expires, ", now!(), " + $9::bigint) END \
        WHERE app = $1 AND owner = $2 AND id = $3 AND ($4::bigint IS NULL OR version = $4) \
        AND ($8::bigint IS NULL OR claim_owner IS NOT NULL AND number * $10::bigint + claims = $8::bigint) \
        AND NOT EXISTS (SELECT 1 FROM stepfold_events e WHERE e.stream = number AND e.id = $5) \
        RETURNING number, version, claims, claim_owner, claim_expires, inbox), \
        added AS (INSERT INTO stepfold_events (stream, version, id, at, body) \
        SELECT number, version, $5, $6, $7 FROM moved) \
        SELECT version, (SELECT version FROM stepfold_scopes WHERE app = $1 AND owner = ''), \
        (SELECT version FROM stepfold_scopes WHERE app = $1 AND owner = $2), \
        number, claims, claim_owner, claim_expires, inbox FROM moved");

    PUT_CLAIM = "UPDATE stepfold_sessions SET claims = $2, claim_owner = $3, claim_expires = $4 WHERE number = $1";
    LOOK_AT_INBOX = concat!(
        "SELECT COALESCE(ARRAY_AGG(position) FILTER (WHERE position = ANY($4::bigint[])), '{}'), ",
        "COALESCE(MAX(position) FILTER (WHERE position <> ALL($4::bigint[])), 0) ",
        "FROM stepfold_inbox WHERE number = ", number!()
    );
    // How many wait; and if the idempotency key $4 is known, its position, and whether the content was the same.
    FIND_INPUT = concat!(
        "SELECT (SELECT COUNT(*) FROM stepfold_inbox WHERE number = ", number!(), "), known.position, known.is_same ",
        "FROM (SELECT 1) AS one LEFT JOIN (",
        "SELECT position, digest = $5 AS is_same FROM stepfold_inbox WHERE key = $4 AND number = ", number!(),
        " UNION ALL ",
        "SELECT position, digest = $5 AS is_same FROM stepfold_taken WHERE key = $4 AND number = ", number!(),
        ") AS known ON TRUE"
    );
    ADD_INPUT = "WITH moved AS (UPDATE stepfold_sessions SET inbox = inbox_last + 1, inbox_last = inbox_last + 1 \
        WHERE number = $1 RETURNING number, inbox) \
        INSERT INTO stepfold_inbox (number, position, key, digest, kind, body, at) \
        SELECT number, inbox, $2, $3, $4, $5, $6 FROM moved RETURNING position";
    READ_INBOX = "SELECT i.position, i.kind, i.key, i.body, i.at FROM stepfold_sessions s \
        LEFT JOIN stepfold_inbox i ON i.number = s.number AND i.position > $4 \
        WHERE s.app = $1 AND s.owner = $2 AND s.id = $3 ORDER BY i.position";
    TAKE_INPUTS = "WITH gone AS (DELETE FROM stepfold_inbox WHERE number = $1 AND position = ANY($2::bigint[]) \
        RETURNING key, position, digest) \
        INSERT INTO stepfold_taken (number, place, key, position, digest) SELECT $1, \
        (SELECT COALESCE(MAX(place), 0) FROM stepfold_taken WHERE number = $1) \
        + ROW_NUMBER() OVER (ORDER BY ARRAY_POSITION($2, position)), key, position, digest FROM gone";
    FORGET_TAKEN = "DELETE FROM stepfold_taken WHERE number = $1 AND place <= \
        (SELECT MAX(place) FROM stepfold_taken WHERE number = $1) - $2::bigint";
    MOVE_INBOX = "UPDATE stepfold_sessions SET inbox = \
        (SELECT COALESCE(MAX(position), 0) FROM stepfold_inbox WHERE number = $1) WHERE number = $1";
    DELETE_INBOX = "DELETE FROM stepfold_inbox WHERE number = $1";
    DELETE_TAKEN = "DELETE FROM stepfold_taken WHERE number = $1";

    READ_CELLS = concat!(
        "SELECT key, schema, value, generation, start, length FROM stepfold_cells WHERE stream = ", number!()
    );
    FIND_CELLS = concat!(
        "SELECT key, schema, value, generation, start, length FROM stepfold_cells ",
        "WHERE key = ANY($4::text[]) AND stream = ", number!()
    );
    READ_ITEMS = concat!(
        "SELECT c.key, i.stream, i.version, i.place, i.items FROM stepfold_cells c ",
        "JOIN stepfold_lineage l ON l.number = c.stream JOIN stepfold_items i ",
        "ON i.stream = l.stream AND i.key = c.key AND i.generation = c.generation ",
        "WHERE c.value IS NULL AND c.stream = ", number!(), " ORDER BY i.version, i.place"
    );
    FIND_ITEMS = concat!(
        "SELECT c.key, i.stream, i.version, i.place, i.items FROM stepfold_cells c ",
        "JOIN stepfold_lineage l ON l.number = c.stream JOIN stepfold_items i ",
        "ON i.stream = l.stream AND i.key = c.key AND i.generation = c.generation ",
        "WHERE c.key = ANY($4::text[]) AND c.stream = ", number!(), " ORDER BY i.version, i.place"
    );
    KEEP_PAST = "INSERT INTO stepfold_past (stream, until, key, version, schema, value, generation, start, length) \
        SELECT stream, $2, key, version, schema, value, generation, start, length FROM stepfold_cells \
        WHERE stream = $1 AND key = ANY($3::text[])";
    DELETE_CELLS = "DELETE FROM stepfold_cells WHERE stream = $1 AND key = ANY($2::text[])";
    PUT_CELLS = "INSERT INTO stepfold_cells (stream, key, version, schema, value, generation, start, length) \
        SELECT $1, n.key, $2, $3, n.value, n.generation, n.start, n.length \
        FROM UNNEST($4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) \
        AS n(key, value, generation, start, length) \
        ON CONFLICT (stream, key) DO UPDATE SET version = EXCLUDED.version, schema = EXCLUDED.schema, \
        value = EXCLUDED.value, generation = EXCLUDED.generation, start = EXCLUDED.start, length = EXCLUDED.length";
    ADD_ITEMS = "INSERT INTO stepfold_items (stream, key, generation, version, place, items) \
        SELECT $1, n.key, n.generation, $2, n.place, n.items \
        FROM UNNEST($3::text[], $4::bigint[], $5::bigint[], $6::text[]) AS n(key, generation, place, items)";
    KEEP_PAST_SINCE = "INSERT INTO stepfold_past \
        (stream, until, key, version, schema, value, generation, start, length) \
        SELECT stream, $3, key, version, schema, value, generation, start, length FROM stepfold_cells \
        WHERE stream = $1 AND version > $2";
    DELETE_CELLS_SINCE = "DELETE FROM stepfold_cells WHERE stream = $1 AND version > $2";
    FORK_CELLS = as_of!(
        "INSERT INTO stepfold_cells (stream, key, version, schema, value, generation, start, length)",
        "$3, key, version, schema, value, generation, start, length",
        ""
    );
    REWIND_CELLS = as_of!(
        "INSERT INTO stepfold_cells (stream, key, version, schema, value, generation, start, length)",
        "$3, key, $4, schema, value, generation, start, length",
        "ON CONFLICT (stream, key) DO NOTHING"
    );
    CELL_KEYS = "SELECT key FROM stepfold_cells WHERE stream = $1";

    // What has changed of a session's own values since version $4; `version` is that of the value.
    CHANGED_CELLS = concat!(
        "SELECT key FROM stepfold_cells WHERE stream = ", number!(), " AND version > $4 ",
        "UNION ALL SELECT key FROM stepfold_past WHERE stream = ", number!(), " AND until > $4"
    );
    // What has changed of a shared scope since version $3.
    CHANGED_SHARED = concat!(
        "SELECT key FROM stepfold_shared WHERE scope = ", scope!(), " AND version > $3 ",
        "UNION ALL SELECT key FROM stepfold_removed WHERE scope = ", scope!(), " AND version > $3"
    );
    READ_SCOPES = "SELECT owner = '', version, known FROM stepfold_scopes WHERE app = $1 AND owner IN ('', $2)";

    ADD_SCOPE = "INSERT INTO stepfold_scopes (app, owner) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    LOCK_SCOPE = "SELECT scope, version FROM stepfold_scopes WHERE app = $1 AND owner = $2 FOR UPDATE";
    MOVE_SCOPE = "UPDATE stepfold_scopes SET version = $2 WHERE scope = $1";
    // The readers of other sessions have seen what is gone, and must not take what comes for it.
    EMPTY_SCOPE = "UPDATE stepfold_scopes c SET (version, known) = \
        (SELECT o.next, o.next FROM (SELECT CASE WHEN EXISTS (SELECT 1 FROM stepfold_sessions s \
        WHERE s.app = c.app AND s.owner = c.owner) THEN c.version + 1 ELSE 0 END AS next) AS o) WHERE c.scope = $1";
    ADD_REMOVED = "INSERT INTO stepfold_removed (scope, key, version) SELECT $1, n.key, $3 \
        FROM UNNEST($2::text[]) AS n(key) \
        ON CONFLICT (scope, key) DO UPDATE SET version = EXCLUDED.version";
    FORGET_REMOVED = "WITH gone AS (DELETE FROM stepfold_removed WHERE scope = $1 AND version <= \
        (SELECT version FROM stepfold_removed WHERE scope = $1 ORDER BY version DESC LIMIT 1 OFFSET $2) \
        RETURNING version) UPDATE stepfold_scopes \
        SET known = GREATEST(known, (SELECT MAX(version) FROM gone)) \
        WHERE scope = $1 AND EXISTS (SELECT 1 FROM gone)";
    READ_SHARED = concat!(
        "SELECT key, schema, value, 0::bigint, start, length FROM stepfold_shared WHERE scope = ", scope!()
    );
    FIND_SHARED = concat!(
        "SELECT key, schema, value, 0::bigint, start, length FROM stepfold_shared ",
        "WHERE key = ANY($3::text[]) AND scope = ", scope!()
    );
    READ_SHARED_ITEMS = concat!(
        "SELECT key, item FROM stepfold_shared_items WHERE scope = ", scope!(), " ORDER BY key, place"
    );
    FIND_SHARED_ITEMS = concat!(
        "SELECT key, item FROM stepfold_shared_items WHERE key = ANY($3::text[]) AND scope = ", scope!(),
        " ORDER BY key, place"
    );
    DROP_SHARED_ITEMS = "DELETE FROM stepfold_shared_items i \
        USING UNNEST($2::text[], $3::bigint[]) AS gone(key, before) \
        WHERE i.scope = $1 AND i.key = gone.key AND i.place < gone.before";
    DELETE_SHARED = "DELETE FROM stepfold_shared WHERE scope = $1 AND key = ANY($2::text[])";
    PUT_SHARED = "INSERT INTO stepfold_shared (scope, key, version, schema, value, start, length) \
        SELECT $1, n.key, $7, $2, n.value, n.start, n.length \
        FROM UNNEST($3::text[], $4::text[], $5::bigint[], $6::bigint[]) AS n(key, value, start, length) \
        ON CONFLICT (scope, key) DO UPDATE SET version = EXCLUDED.version, schema = EXCLUDED.schema, value = EXCLUDED.value, \
        start = EXCLUDED.start, length = EXCLUDED.length";
    PUT_SHARED_ITEMS = "INSERT INTO stepfold_shared_items (scope, key, place, item) \
        SELECT $1, n.key, n.place, n.item FROM UNNEST($2::text[], $3::bigint[], $4::text[]) AS n(key, place, item) \
        ON CONFLICT (scope, key, place) DO UPDATE SET item = EXCLUDED.item";
    SHARED_KEYS = "SELECT key FROM stepfold_shared WHERE scope = $1";
    DELETE_ALL_SHARED = "DELETE FROM stepfold_shared WHERE scope = $1";
    DELETE_REMOVED = "DELETE FROM stepfold_removed WHERE scope = $1";
    DELETE_ALL_SHARED_ITEMS = "DELETE FROM stepfold_shared_items WHERE scope = $1";
    DELETE_OPERATIONS = "DELETE FROM stepfold_operations WHERE scope = $1";
    FIND_OPERATION = concat!(
        "SELECT body = $4 FROM stepfold_operations WHERE operation = $3 AND scope = ", scope!()
    );
    ADD_OPERATION = "INSERT INTO stepfold_operations (scope, operation, body) VALUES ($1, $2, $3)";
    FORGET_OPERATIONS = "DELETE FROM stepfold_operations WHERE scope = $1 AND number <= \
        (SELECT number FROM stepfold_operations WHERE scope = $1 ORDER BY number DESC LIMIT 1 OFFSET $2)";

    SHARERS = "SELECT MAX(l.upto), MIN(s.oldest), COUNT(*) FROM stepfold_lineage l \
        JOIN stepfold_sessions s ON s.number = l.number WHERE l.stream = $1";
    SWEEP_EVENTS = "DELETE FROM stepfold_events WHERE stream = $1 AND (version > $2 OR version <= $3)";
    SWEEP_CELLS = "DELETE FROM stepfold_cells WHERE stream = $1 AND version > $2";
    SWEEP_PAST = "DELETE FROM stepfold_past WHERE stream = $1 AND (version > $2 OR until <= $3)";
    SWEEP_ITEMS = "DELETE FROM stepfold_items WHERE stream = $1 AND version > $2";
    SWEEP_REWINDS = "DELETE FROM stepfold_rewinds WHERE stream = $1 AND version > $2";
    SWEEP_LOST_ITEMS = "DELETE FROM stepfold_items i WHERE i.stream = $1 AND NOT EXISTS \
        (SELECT 1 FROM stepfold_cells c WHERE c.stream = $1 AND c.key = i.key AND c.generation = i.generation) \
        AND NOT EXISTS \
        (SELECT 1 FROM stepfold_past p WHERE p.stream = $1 AND p.key = i.key AND p.generation = i.generation) \
        AND $1 IN (SELECT number FROM stepfold_sessions)";
}

//! Every statement.

use crate::rows::erasure::with_forks;
use crate::rows::sql::SharedSql;

/// A statement of the list below, or of the one that both databases share; its text tells it from others.
#[derive(Clone, Copy)]
pub(super) struct SqlStatement(&'static str);

impl SqlStatement {
    pub(super) const fn of_both(sql: SharedSql) -> Self {
        SqlStatement(sql.text())
    }

    pub(super) const fn text(self) -> &'static str {
        self.0
    }
}

macro_rules! statements {
    ($($name:ident = $text:expr;)*) => {
        $(pub(super) const $name: SqlStatement = SqlStatement($text);)*
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
        // NOTE: not `now()`, which is the start of the transaction: it may have waited for a lock since, and a claim would
        // begin in the past.
        "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
    };
}

/// The time since which a session waits without a worker. A released claim with work left has a negative expiry: see
/// `store/claims.rs`.
macro_rules! free_since {
    () => {
        "CASE WHEN claim_expires < 0 THEN ~claim_expires ELSE COALESCE(claim_expires, updated) END"
    };
}

/// Appends the beginning of a message to the searched text of a session that has no message yet.
macro_rules! searched {
    ($message:literal) => {
        concat!(
            "searched = searched || CASE WHEN right(searched, 1) = chr(10) THEN ",
            $message,
            "::text ELSE '' END"
        )
    };
}

/// The columns of a session, with its id and the time.
macro_rules! session_columns {
    () => {
        concat!(
            "number, version, oldest, created, updated, parent_id, parent_version, id, ",
            "life, claims, claim_owner, claim_expires, inbox, ",
            now!(),
            ", seal, inbox_last, waiting, work"
        )
    };
}

/// The row of a session.
macro_rules! session {
    () => {
        concat!("SELECT ", session_columns!(), " FROM stepfold_sessions")
    };
}

/// The rewinds of sessions, by a rule, that count at a version of each; and the newest one of each part of their
/// histories.
macro_rules! rewinds {
    ($rule:expr, $upto:literal) => {
        concat!(
            "WITH RECURSIVE w AS (SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum, l.number ",
            "FROM stepfold_lineage l JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version = ",
            "(SELECT MAX(n.version) FROM stepfold_rewinds n ",
            "WHERE n.stream = l.stream AND n.version > l.after AND n.version <= ",
            $upto,
            ") WHERE ",
            $rule,
            " UNION SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum, w.number ",
            "FROM w JOIN stepfold_lineage l ON l.number = w.number AND w.visible > l.after AND w.visible <= l.upto ",
            "JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version = w.visible) ",
            "SELECT stream, version, target, previous, visible, checksum, number FROM w"
        )
    };
}

/// The row of an entry of an inbox.
macro_rules! input {
    () => {
        "position, checksum, key, digest, kind, body, at"
    };
}

/// The number of the scope of app $1 and owner $2.
macro_rules! scope {
    () => {
        "(SELECT scope FROM stepfold_scopes WHERE app = $1 AND owner = $2)"
    };
}

/// The columns of a key of a session.
macro_rules! cell {
    () => {
        "schema, value, generation, start, length, items, version, checksum"
    };
}

/// The columns of a key of a shared scope, in the form of a session's key.
macro_rules! shared {
    () => {
        "SELECT key, schema, value, 0::bigint, start, length, 0::bigint, version, checksum, changed FROM stepfold_shared"
    };
}

/// The rows of the items of shared lists, newest first.
macro_rules! shared_items {
    ($rule:literal) => {
        concat!(
            "SELECT i.key, i.place, i.version, i.checksum, i.item FROM stepfold_shared_items i ",
            $rule,
            " AND i.scope = ",
            scope!(),
            " ORDER BY i.key, i.place DESC"
        )
    };
}

/// The rows of the items of lists, `s` having their keys and generations.
macro_rules! items {
    () => {
        "s.key, i.stream, i.generation, i.version, i.place, i.items, i.checksum"
    };
}

/// The rows of a state as it was at version $2 in stream $1.
macro_rules! as_of {
    ($before:expr, $columns:expr, $after:literal) => {
        concat!(
            $before,
            " SELECT ",
            $columns,
            " FROM (SELECT key, ",
            cell!(),
            " FROM stepfold_cells WHERE stream = $1 AND version <= $2 UNION ALL SELECT key, ",
            cell!(),
            " FROM stepfold_past WHERE stream = $1 AND until > $2 AND version <= $2) AS state ",
            $after,
        )
    };
}

/// Versions of the history of session $1 that are after $2 and in the ranges from each of $3 to that of $4, by a rule.
macro_rules! in_history {
    ($columns:literal, $rule:literal, $order:literal, $limit:literal) => {
        concat!(
            "SELECT e.* FROM stepfold_lineage l CROSS JOIN UNNEST($3::bigint[], $4::bigint[]) AS r(first, last) ",
            "CROSS JOIN LATERAL (SELECT ",
            $columns,
            " FROM stepfold_events e WHERE e.stream = l.stream ",
            "AND e.version > GREATEST(l.after, $2, r.first - 1) AND e.version <= LEAST(l.upto, r.last) ",
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

/// So many columns without a value, of the common row of [parts](super::parts).
macro_rules! no {
    (1) => {
        ", NULL"
    };
    (2) => {
        ", NULL, NULL"
    };
    (3) => {
        ", NULL, NULL, NULL"
    };
    (4) => {
        ", NULL, NULL, NULL, NULL"
    };
    (5) => {
        ", NULL, NULL, NULL, NULL, NULL"
    };
    (6) => {
        concat!(no!(3), no!(3))
    };
    (7) => {
        concat!(no!(4), no!(3))
    };
    (8) => {
        concat!(no!(4), no!(4))
    };
    (9) => {
        concat!(no!(5), no!(4))
    };
    (10) => {
        concat!(no!(5), no!(5))
    };
    (11) => {
        concat!(no!(5), no!(6))
    };
    (13) => {
        concat!(no!(5), no!(8))
    };
}

/// The part of the sessions `s`.
macro_rules! session_part {
    () => {
        concat!(
            "SELECT 1, number, version, oldest, created, updated, parent_version, claims, claim_expires, inbox, now, ",
            "inbox_last, waiting, work, parent_id, id, life, claim_owner, seal FROM s "
        )
    };
}

/// The part of the shared scopes of app $1 and owner $2.
macro_rules! scopes_part {
    () => {
        concat!(
            "UNION ALL SELECT 4, scope, version, known",
            no!(10),
            ", owner",
            no!(3),
            ", seal FROM stepfold_scopes WHERE app = $1 AND owner IN ('', $2) "
        )
    };
}

/// The parts of a session that each read has, given its rows `s`: the session, its history, and its shared scopes of app
/// $1 and owner $2.
macro_rules! common_parts {
    () => {
        concat!(
            session_part!(),
            "UNION ALL SELECT 2, stream, after, upto, number",
            no!(9),
            no!(4),
            no!(1),
            " FROM l ",
            "UNION ALL SELECT 3, stream, version, target, previous, visible, checksum, number",
            no!(6),
            no!(4),
            no!(1),
            " FROM w ",
            scopes_part!(),
            "UNION ALL SELECT 5, version, at, stream, number",
            no!(9),
            ", id, body",
            no!(2),
            ", seal FROM e "
        )
    };
}

/// Sessions `s` by a rule, with the segments `l` of their histories from the newest on, and the rewinds `w` that count.
macro_rules! with_sessions {
    ($from:expr) => {
        concat!(
            "WITH RECURSIVE s AS MATERIALIZED (SELECT number, version, oldest, created, updated, parent_id, ",
            "parent_version, id, life, claims, claim_owner, claim_expires, inbox, ",
            now!(),
            " AS now, seal, inbox_last, ",
            "waiting, work",
            $from,
            "), ",
            "l AS MATERIALIZED (SELECT l.number, l.stream, l.after, l.upto FROM s JOIN stepfold_lineage l ",
            "ON l.number = s.number ORDER BY l.number, l.after DESC, l.upto DESC), ",
            "w AS (SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum, l.number ",
            "FROM l JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version = ",
            "(SELECT MAX(n.version) FROM stepfold_rewinds n ",
            "WHERE n.stream = l.stream AND n.version > l.after AND n.version <= l.upto) ",
            "UNION SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum, w.number ",
            "FROM w JOIN l ON l.number = w.number AND w.visible > l.after AND w.visible <= l.upto ",
            "JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version = w.visible), "
        )
    };
}

/// The events `e` of a session after version $4 that are among the last $5 and the first $6 of these, newest first; and the
/// one before them, without its body.
macro_rules! with_events {
    () => {
        concat!(
            "f AS (SELECT number, version AS newest, GREATEST(oldest, $4::bigint, version - $5::bigint) AS after FROM s), ",
            "e AS (SELECT e.stream, e.version, e.id, e.at, e.seal, f.number, CASE WHEN e.version > f.after THEN e.body END AS body ",
            "FROM f JOIN l ON l.number = f.number CROSS JOIN LATERAL (SELECT * FROM stepfold_events e ",
            "WHERE e.stream = l.stream AND e.version > GREATEST(l.after, f.after - 1) ",
            "AND e.version <= LEAST(l.upto, f.newest, f.after + $6::bigint) ORDER BY e.version DESC) AS e) "
        )
    };
}

/// The session of app $1, owner $2 and id $3.
macro_rules! with_session {
    () => {
        concat!(
            with_sessions!(" FROM stepfold_sessions WHERE app = $1 AND owner = $2 AND id = $3"),
            with_events!()
        )
    };
}

/// The parts of all values of a session `s` and of its shared scopes.
macro_rules! value_parts {
    () => {
        concat!(
            "UNION ALL SELECT 9, schema, generation, start, length, items, version, checksum",
            no!(6),
            ", key, value",
            no!(3),
            " FROM stepfold_cells WHERE stream = (SELECT number FROM s) ",
            "UNION ALL (SELECT 10, i.stream, i.generation, i.version, i.place, i.checksum",
            no!(8),
            ", s.key, i.items",
            no!(3),
            " FROM stepfold_cells s JOIN l ON TRUE JOIN stepfold_items i ",
            "ON i.stream = l.stream AND i.key = s.key AND i.generation = s.generation ",
            "WHERE s.value IS NULL AND s.stream = (SELECT number FROM s) ORDER BY i.version, i.place) ",
            "UNION ALL SELECT 11, v.schema, 0, v.start, v.length, 0, v.version, v.checksum, v.changed",
            no!(5),
            ", v.key, v.value, c.owner",
            no!(2),
            " FROM stepfold_scopes c JOIN stepfold_shared v ON v.scope = c.scope ",
            "WHERE c.app = $1 AND c.owner IN ('', $2) ",
            "UNION ALL (SELECT 12, i.place, i.version, i.checksum",
            no!(10),
            ", i.key, i.item, c.owner",
            no!(2),
            " FROM stepfold_scopes c JOIN stepfold_shared_items i ON i.scope = c.scope ",
            "WHERE c.app = $1 AND c.owner IN ('', $2) ORDER BY i.key, i.place DESC)"
        )
    };
}

/// What an event writes besides the row of its session, given that as `moved`, which is empty if nothing may be written:
/// the event, the values that were before, the values and items that are now, and tags.
macro_rules! event_parts {
    () => {
        concat!(
            "added AS (INSERT INTO stepfold_events (stream, version, id, at, body, seal) ",
            "SELECT number, $2, $5, $3, $6, $7 FROM moved), ",
            // NOTE: all parts see the values as they were before the statement.
            "past AS (INSERT INTO stepfold_past (stream, until, key, ", cell!(), ") SELECT stream, $2, key, ", cell!(),
            " FROM stepfold_cells WHERE stream = (SELECT number FROM moved) AND key = ANY($10::text[])), ",
            "gone AS (DELETE FROM stepfold_cells WHERE stream = (SELECT number FROM moved) AND key = ANY($11::text[])), ",
            "put AS (INSERT INTO stepfold_cells (stream, key, ", cell!(), ") ",
            "SELECT (SELECT number FROM moved), n.key, $12::bigint, n.value, n.generation, n.start, n.length, n.items, ",
            "$2, n.checksum FROM UNNEST($13::text[], $14::text[], $15::bigint[], $16::bigint[], $17::bigint[], ",
            "$18::bigint[], $19::bigint[]) AS n(key, value, generation, start, length, items, checksum) ",
            "WHERE EXISTS (SELECT 1 FROM moved) ",
            "ON CONFLICT (stream, key) DO UPDATE SET version = EXCLUDED.version, schema = EXCLUDED.schema, ",
            "value = EXCLUDED.value, generation = EXCLUDED.generation, start = EXCLUDED.start, ",
            "length = EXCLUDED.length, items = EXCLUDED.items, checksum = EXCLUDED.checksum), ",
            "listed AS (INSERT INTO stepfold_items (stream, key, generation, version, place, items, checksum) ",
            "SELECT (SELECT number FROM moved), n.key, n.generation, $2, n.place, n.items, n.checksum ",
            "FROM UNNEST($20::text[], $21::bigint[], $22::bigint[], $23::text[], $24::bigint[]) ",
            "AS n(key, generation, place, items, checksum) WHERE EXISTS (SELECT 1 FROM moved)), ",
            "tagged AS (INSERT INTO stepfold_tags (stream, version, tag) ",
            "SELECT number, $2, UNNEST($25::bytea[]) FROM moved) "
        )
    };
}

statements! {
    // NOTE: searched by a digest, since an index over the texts would reject long ones. Without a unique index two workers
    // may add the same text; `FIND_SCHEMA` takes the lowest number.
    ADD_SCHEMA = "INSERT INTO stepfold_schemas (text, checksum) SELECT $1::text, $2 WHERE NOT EXISTS \
        (SELECT 1 FROM stepfold_schemas WHERE md5(text) = md5($1::text) AND text = $1::text)";
    FIND_SCHEMA = "SELECT MIN(id) FROM stepfold_schemas WHERE md5(text) = md5($1::text) AND text = $1::text";
    READ_SCHEMA = "SELECT text, checksum FROM stepfold_schemas WHERE id = $1";

    // A session with events, in one snapshot: without its values; with all of them; or with the keys that were written since
    // version $7 of its own, $8 of its app's and $9 of its user's values.
    GET_SESSION = concat!(with_session!(), common_parts!());
    GET_WHOLE = concat!(with_session!(), common_parts!(), value_parts!());
    GET_CHANGES = concat!(
        with_session!(), common_parts!(),
        "UNION ALL SELECT 7", no!(13), ", key", no!(4), " FROM stepfold_cells ",
        "WHERE stream = (SELECT number FROM s) AND version > $7::bigint ",
        "UNION ALL SELECT 7", no!(13), ", key", no!(4), " FROM stepfold_past ",
        "WHERE stream = (SELECT number FROM s) AND until > $7::bigint ",
        "UNION ALL SELECT 8", no!(13), ", owner", no!(4), " FROM stepfold_scopes WHERE app = $1 ",
        "AND (owner = '' AND version > $8::bigint OR owner = $2 AND version > $9::bigint)"
    );
    // A page of the list: the sessions, and the rewinds that count in each.
    LIST_AT_ONCE = concat!(
        with_sessions!(" FROM stepfold_sessions WHERE app = $1 AND owner = $2 AND (updated, number) < ($3, $4) \
            AND (NOT $6::boolean OR unfinished) AND strpos(searched, $7::text) > 0 \
            ORDER BY updated DESC, number DESC LIMIT $5"),
        "e AS (SELECT 0 AS version, 0 AS at, 0 AS stream, 0 AS number, '' AS id, '' AS body, ''::bytea AS seal WHERE FALSE) ",
        common_parts!()
    );
    // Sessions $3 with their first $4 and newest $5 events, of which the first ones have $6 bytes together; and the event
    // before the newest, without its body.
    OUTLINES = concat!(
        with_sessions!(", n.place FROM UNNEST($3::text[]) WITH ORDINALITY AS n(wanted, place) \
            JOIN stepfold_sessions ON app = $1 AND owner = $2 AND id = n.wanted"),
        "a AS (SELECT e.stream, e.version, e.id, e.at, e.seal, e.number, e.place, ",
        "CASE WHEN e.version <= e.oldest + $4::bigint OR e.version > e.newest - $5::bigint THEN e.body END AS body ",
        "FROM (SELECT e.*, s.number, s.place, s.oldest, s.version AS newest FROM s JOIN stepfold_lineage l ON l.number = s.number ",
        "CROSS JOIN LATERAL (VALUES (s.oldest, LEAST(s.oldest + $4::bigint, s.version - $5::bigint - 1)), ",
        "(GREATEST(s.oldest, s.version - $5::bigint - 1), s.version)) AS r(after, upto) ",
        "JOIN stepfold_events e ON e.stream = l.stream AND e.version > GREATEST(l.after, r.after) ",
        "AND e.version <= LEAST(l.upto, r.upto)) AS e), ",
        "e AS (SELECT stream, version, id, at, seal, number, ",
        "CASE WHEN SUM(octet_length(body)) OVER (ORDER BY place, version DESC) <= $6::bigint THEN body END AS body ",
        "FROM a ORDER BY place, version DESC) ",
        common_parts!(),
        "UNION ALL (SELECT 6, f.number, o.parent_version, o.created, f.checksum, f.parent", no!(8), ", o.id", no!(4),
        " FROM s JOIN stepfold_forks f ON f.parent = s.number JOIN stepfold_sessions o ON o.number = f.number ",
        "ORDER BY f.number)"
    );
    READ_SESSION = concat!(session!(), " WHERE app = $1 AND owner = $2 AND id = $3");
    LOCK_SESSION = concat!(session!(), " WHERE app = $1 AND owner = $2 AND id = $3 FOR UPDATE");
    // It keeps its claim until the end of the transaction.
    KEEP_SESSION = concat!(session!(), " WHERE app = $1 AND owner = $2 AND id = $3 FOR SHARE");
    // Those that no other transaction has locked.
    LOCK_SESSIONS = concat!(
        "SELECT ", session_columns!(), ", app, owner FROM stepfold_sessions ",
        "WHERE (app, owner, id) IN (SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[])) FOR UPDATE SKIP LOCKED"
    );
    FIND_SESSIONS = "SELECT app, owner, id FROM stepfold_sessions \
        WHERE (app, owner, id) IN (SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[]))";
    LIST_SESSIONS = concat!(
        session!(), " WHERE app = $1 AND owner = $2 AND (updated, number) < ($3, $4) ",
        "AND (NOT $6::boolean OR unfinished) AND strpos(searched, $7::text) > 0 ORDER BY updated DESC, number DESC LIMIT $5"
    );
    // Each user costs one look-up in the index, however many sessions it has.
    LIST_USERS = "WITH RECURSIVE u (owner) AS ( \
        SELECT MIN(owner) FROM stepfold_sessions WHERE app = $1 AND owner > $2 UNION ALL \
        SELECT (SELECT MIN(s.owner) FROM stepfold_sessions s WHERE s.app = $1 AND s.owner > u.owner) \
        FROM u WHERE u.owner IS NOT NULL) \
        SELECT owner FROM u WHERE owner IS NOT NULL LIMIT $3";
    SCAN_SESSIONS = "SELECT owner, id, version, oldest, created, updated, unfinished, inbox, number, \
        CASE WHEN $6::boolean THEN (SELECT e.at FROM stepfold_lineage l JOIN stepfold_events e \
        ON e.stream = l.stream AND e.version = s.oldest + 1 \
        WHERE l.number = s.number AND l.after <= s.oldest AND l.upto > s.oldest) END \
        FROM stepfold_sessions s WHERE app = $1 AND (owner, updated, number) > ($2, $3, $4) \
        ORDER BY owner, updated, number LIMIT $5";
    // NOTE: claims expire by the server's clock; a session is due by the clock of the workers, which set that time.
    LIST_UNATTENDED = concat!(
        "SELECT owner, id, ", free_since!(), " AS since, inbox, number, claim_owner, ",
        "claim_owner IS NULL AND claim_expires IS NOT NULL ",
        "FROM stepfold_sessions WHERE app = $1 AND (claim_expires IS NOT NULL OR inbox > 0) ",
        "AND (claim_expires IS NULL OR claim_expires <= CASE WHEN claim_owner IS NULL THEN $5::bigint ELSE ",
        now!(), " END OR ($6::boolean AND claim_owner IS NOT NULL)) ",
        "AND (", free_since!(), ", number) > ($2::bigint, $3::bigint) ORDER BY since, number LIMIT $4"
    );
    // NOTE: only a suggestion for an id: the number itself comes from the table's identity.
    NEXT_NUMBER = "SELECT COALESCE(MAX(number), 0) + 1 FROM stepfold_sessions";
    ADD_SESSION = "INSERT INTO stepfold_sessions \
        (app, owner, id, version, oldest, created, updated, parent_id, parent_version, life, work, seal, searched) \
        VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9, 0, ''::bytea, $10) ON CONFLICT DO NOTHING RETURNING number";
    DELETE_SESSION = "DELETE FROM stepfold_sessions WHERE number = $1";
    LOCK_TENANT = "SELECT pg_advisory_xact_lock(hashtext('stepfold ' || $1::text), hashtext($2::text))";
    MOVE_OLDEST = "UPDATE stepfold_sessions SET oldest = $2, seal = $3 WHERE number = $1";
    // The checksums of a new session, which are those of its number.
    PUT_SEALS = "UPDATE stepfold_sessions SET seal = $2, work = $3 WHERE number = $1";
    PUT_SEAL = "UPDATE stepfold_sessions SET seal = $2 WHERE number = $1";

    READ_LINEAGE = concat!(
        "SELECT stream, after, upto FROM stepfold_lineage WHERE number = ", number!(),
        " ORDER BY after DESC, upto DESC"
    );
    // The rewinds of a session that count at version $4, and the newest one of each part of its history.
    READ_REWINDS = rewinds!(concat!("l.number = ", number!()), "LEAST(l.upto, $4)");
    ALL_REWINDS = concat!(
        "SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum FROM stepfold_lineage l ",
        "JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version > l.after AND r.version <= l.upto ",
        "WHERE l.number = $1"
    );
    ADD_LINEAGE = "INSERT INTO stepfold_lineage (number, stream, after, upto) VALUES ($1, $2, $3, $4)";
    DELETE_LINEAGE = "DELETE FROM stepfold_lineage WHERE number = $1";

    EVENTS = in_history!("e.version, e.id, e.at, e.body, e.seal, e.stream", "", "DESC", "$5");
    EVENT_SIZES = in_history!("e.version, octet_length(e.body)", "", "ASC", "$5");
    EVENT_BODIES = in_history!("e.version, e.body, e.id", "", "ASC", "$5");
    // The seals of events, each by its stream and version.
    SEALS = "SELECT e.stream, e.version, e.at, e.seal FROM UNNEST($1::bigint[], $2::bigint[]) AS n(stream, version) \
        JOIN stepfold_events e ON e.stream = n.stream AND e.version = n.version";
    // NOTE: a limit for each range and again for the whole: each range stops at its first row.
    LAST_BEFORE = in_history!("e.version", "AND e.at < $5", "DESC", "1");
    FIRST_SINCE = in_history!("e.version", "AND e.at >= $5", "ASC", "1");
    // NOTE: compared in the database, so that a large body is not sent back; a sealed one has to be opened.
    REPEATED = concat!(
        "SELECT version, body = $5 AND at = $6, CASE WHEN at = $6 AND left(body, 1) = '~' THEN body END ",
        "FROM stepfold_events WHERE stream = ", number!(), " AND id = $4"
    );
    FIND_EVENT = concat!(
        "SELECT number, (SELECT e.version FROM stepfold_events e WHERE e.stream = number AND e.id = $4 AND e.version > oldest) ",
        "FROM stepfold_sessions WHERE app = $1 AND owner = $2 AND id = $3"
    );
    // No row for a session that is missing.
    HAS_SEALED_EVENTS = "SELECT EXISTS (SELECT 1 FROM stepfold_lineage l JOIN stepfold_events e ON e.stream = l.stream \
        WHERE l.number = s.number AND substr(e.body, 1, 1) = '~') \
        FROM stepfold_sessions s WHERE s.app = $1 AND s.owner = $2 AND s.id = $3";
    ADD_TAGS = "INSERT INTO stepfold_tags (stream, version, tag) SELECT $1, $2, UNNEST($3::bytea[])";
    // The versions of the events with the tags $4, in the history of a session.
    FIND_TAGGED = concat!(
        "SELECT t.tag, t.version FROM stepfold_lineage l JOIN stepfold_tags t ON t.stream = l.stream ",
        "AND t.tag = ANY($4::bytea[]) AND t.version > l.after AND t.version <= l.upto ",
        "WHERE l.number = ", number!()
    );
    // The tags of the events of session $1 after version $2.
    READ_TAGS = "SELECT t.version, t.tag FROM stepfold_lineage l JOIN stepfold_tags t ON t.stream = l.stream \
        AND t.version > GREATEST(l.after, $2) AND t.version <= l.upto WHERE l.number = $1";
    ADD_EVENT = "INSERT INTO stepfold_events (stream, version, id, at, body, seal) VALUES ($1, $2, $3, $4, $5, $6)";
    MOVE_VERSION = concat!(
        "UPDATE stepfold_sessions SET version = $2, updated = $3, seal = $4, unfinished = $5, ", searched!("$6"),
        " WHERE number = $1"
    );
    PUT_LISTED = "UPDATE stepfold_sessions SET unfinished = $2, searched = $3 WHERE number = $1";
    READ_LISTED = "SELECT unfinished, searched FROM stepfold_sessions WHERE number = $1";
    ADD_REWIND = "INSERT INTO stepfold_rewinds (stream, version, target, previous, visible, checksum) \
        VALUES ($1, $2, $3, $4, $5, $6)";
    // An event without writes, in one statement, after version $4 with seal $11: it gets the seal $13, and the session
    // $12. No row: something is not as expected, look closer. With $8 it is written under the claim of this token: held for
    // $9, as long as not half of that is gone; or released, which makes of the checksum $14 of claim and inbox $15.
    APPEND_PLAIN = concat!("WITH moved AS (UPDATE stepfold_sessions SET version = version + 1, updated = $6, seal = $12, \
        unfinished = $16, ", searched!("$17"), ", claim_owner = CASE WHEN $15::bigint IS NULL THEN claim_owner END, \
        claim_expires = CASE WHEN $15::bigint IS NULL THEN claim_expires END, work = COALESCE($15::bigint, work) \
        WHERE app = $1 AND owner = $2 AND id = $3 AND version = $4 AND seal = $11 \
        AND ($8::bigint IS NULL OR claim_owner IS NOT NULL AND number * $10::bigint + claims = $8::bigint) \
        AND ($9::bigint IS NULL OR claim_expires >= ", now!(), " + $9::bigint / 2) \
        AND ($15::bigint IS NULL OR work = $14::bigint) \
        AND NOT EXISTS (SELECT 1 FROM stepfold_events e WHERE e.stream = number AND e.id = $5) \
        RETURNING number, version, claims, claim_owner, claim_expires, inbox), \
        added AS (INSERT INTO stepfold_events (stream, version, id, at, body, seal) \
        SELECT number, version, $5, $6, $7, $13 FROM moved) \
        SELECT version, (SELECT version FROM stepfold_scopes WHERE app = $1 AND owner = ''), \
        (SELECT version FROM stepfold_scopes WHERE app = $1 AND owner = $2), \
        number, claims, claim_owner, claim_expires, inbox FROM moved");

    // What an append needs to know, with the lock of the session's row: that row, the event with the id $4, the values of
    // the keys $7, the versions of the shared scopes, and the entries $8 of the inbox; and the row as the rest of the
    // statement sees it. If that is another one, the statement has waited for the lock, and the rest is outdated.
    READ_APPEND = concat!(
        "WITH seen AS MATERIALIZED (SELECT number, version, work, seal FROM stepfold_sessions ",
        "WHERE app = $1 AND owner = $2 AND id = $3), ",
        "s AS MATERIALIZED (SELECT number, version, oldest, created, updated, parent_id, parent_version, id, life, claims, ",
        "claim_owner, claim_expires, inbox, ", now!(), " AS now, seal, inbox_last, waiting, work FROM stepfold_sessions ",
        "WHERE app = $1 AND owner = $2 AND id = $3 FOR UPDATE) ",
        session_part!(), scopes_part!(),
        "UNION ALL SELECT 9, schema, generation, start, length, items, version, checksum", no!(6),
        ", key, value", no!(3), " FROM stepfold_cells WHERE key = ANY($7::text[]) AND stream = (SELECT number FROM seen) ",
        "UNION ALL SELECT 13, version, (body = $5 AND at = $6)::integer", no!(11),
        ", CASE WHEN at = $6 AND left(body, 1) = '~' THEN body END", no!(4),
        " FROM stepfold_events WHERE stream = (SELECT number FROM seen) AND id = $4 ",
        "UNION ALL SELECT 14, position, checksum, at, (SELECT COALESCE(MAX(position), 0) FROM stepfold_inbox ",
        "WHERE position <> ALL($8::bigint[]) AND number = (SELECT number FROM seen))", no!(9),
        ", key, kind, body", no!(1), ", digest FROM stepfold_inbox ",
        "WHERE position = ANY($8::bigint[]) AND number = (SELECT number FROM seen) ",
        "UNION ALL SELECT 15, number, version, work", no!(10), no!(4), ", seal FROM seen"
    );
    // An event, by the holder of the lock of the session's row; with $26 also what claim and inbox are then.
    ADD_LOCKED = concat!(
        "WITH moved AS (UPDATE stepfold_sessions SET version = $2, updated = $3, seal = $4, unfinished = $8, ",
        searched!("$9"), ", claims = CASE WHEN $26::boolean THEN $27::bigint ELSE claims END, ",
        "claim_owner = CASE WHEN $26 THEN $28::text ELSE claim_owner END, ",
        "claim_expires = CASE WHEN $26 THEN $29::bigint ELSE claim_expires END, ",
        "inbox = CASE WHEN $26 THEN $30::bigint ELSE inbox END, ",
        "inbox_last = CASE WHEN $26 THEN $31::bigint ELSE inbox_last END, ",
        "waiting = CASE WHEN $26 THEN $32::bigint ELSE waiting END, ",
        "work = CASE WHEN $26 THEN $33::bigint ELSE work END WHERE number = $1 RETURNING number), ",
        event_parts!(), "SELECT number FROM moved"
    );
    // An event in one statement, of a session whose row has the seal $28. No row: something is not as expected, look closer.
    // With $29 it is written under the claim of this token: held for $30, as long as not half of that is gone; or released,
    // which makes of the checksum $32 of claim and inbox $33.
    ADD_KNOWN = concat!(
        "WITH moved AS (UPDATE stepfold_sessions SET version = $2::bigint, updated = $3, seal = $4, unfinished = $8, ",
        searched!("$9"), ", claim_owner = CASE WHEN $33::bigint IS NULL THEN claim_owner END, ",
        "claim_expires = CASE WHEN $33::bigint IS NULL THEN claim_expires END, work = COALESCE($33::bigint, work) ",
        "WHERE number = $1 AND version = $2::bigint - 1 AND seal = $28 ",
        "AND ($29::bigint IS NULL OR claim_owner IS NOT NULL AND number * $31::bigint + claims = $29::bigint) ",
        "AND ($30::bigint IS NULL OR claim_expires >= ", now!(), " + $30::bigint / 2) ",
        "AND ($33::bigint IS NULL OR work = $32::bigint) ",
        "AND NOT EXISTS (SELECT 1 FROM stepfold_events e WHERE e.stream = number AND e.id = $5) ",
        "RETURNING number, version, claims, claim_owner, claim_expires, inbox), ",
        event_parts!(),
        "SELECT version, (SELECT version FROM stepfold_scopes WHERE app = $26 AND owner = ''), ",
        "(SELECT version FROM stepfold_scopes WHERE app = $26 AND owner = $27), ",
        "number, claims, claim_owner, claim_expires, inbox FROM moved"
    );

    PUT_WORK = "UPDATE stepfold_sessions SET claims = $2, claim_owner = $3, claim_expires = $4, inbox = $5, \
        inbox_last = $6, waiting = $7, work = $8 WHERE number = $1";
    // NOTE: the checksum of a claim is computed by the worker, so a heartbeat is two statements: one reads and locks, this
    // one writes.
    PUT_CLAIMS = "UPDATE stepfold_sessions SET claim_expires = n.expires, work = n.work \
        FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) AS n (number, expires, work) \
        WHERE stepfold_sessions.number = n.number";
    // Those of the positions $4 that wait, each with the newest one beside them.
    LOOK_AT_INBOX = concat!(
        "SELECT ", input!(), ", (SELECT COALESCE(MAX(position), 0) FROM stepfold_inbox ",
        "WHERE position <> ALL($4::bigint[]) AND number = ", number!(), ") ",
        "FROM stepfold_inbox WHERE position = ANY($4::bigint[]) AND number = ", number!()
    );
    // How many wait; and if the idempotency key $4 is known, its row, of which a taken one has a part only.
    FIND_INPUT = concat!(
        "SELECT known.position, known.checksum, $4::text, known.digest, known.kind, known.body, known.at, ",
        "(SELECT COUNT(*) FROM stepfold_inbox WHERE number = ", number!(), ") ",
        "FROM (SELECT 1) AS one LEFT JOIN (",
        "SELECT ", input!(), " FROM stepfold_inbox WHERE key = $4 AND number = ", number!(), " UNION ALL ",
        "SELECT position, checksum, key, digest, NULL, NULL, NULL FROM stepfold_taken WHERE key = $4 AND number = ",
        number!(), ") AS known ON TRUE"
    );
    ADD_INPUT = concat!(
        "INSERT INTO stepfold_inbox (number, ", input!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
    );
    // All that waits; the body only behind position $4, of at most $5 bytes, at the positions $6.
    READ_INBOX = concat!(
        "SELECT position, checksum, key, digest, kind, CASE WHEN position > $4 AND octet_length(body) <= $5::bigint ",
        "AND ($6::bigint[] IS NULL OR position = ANY($6::bigint[])) THEN body END, at ",
        "FROM stepfold_inbox WHERE number = ", number!(), " ORDER BY position"
    );
    // The same with the row of the session, in one snapshot.
    GET_INBOX = concat!(
        "SELECT s.*, w.* FROM (", session!(), " WHERE app = $1 AND owner = $2 AND id = $3) AS s ",
        "LEFT JOIN LATERAL (SELECT position, checksum, key, digest, kind, ",
        "CASE WHEN position > $4 AND octet_length(body) <= $5::bigint ",
        "AND ($6::bigint[] IS NULL OR position = ANY($6::bigint[])) THEN body END, at ",
        "FROM stepfold_inbox WHERE number = s.number) ",
        "AS w(position, checksum, key, digest, kind, body, at) ON TRUE ORDER BY w.position"
    );
    READ_TAKEN = concat!(
        "SELECT position, checksum, key, digest FROM stepfold_taken WHERE number = ", number!()
    );
    // Takes what waits at the positions $2; its rows then have the checksums $3.
    TAKE_INPUTS = "WITH gone AS (DELETE FROM stepfold_inbox WHERE number = $1 AND position = ANY($2::bigint[]) \
        RETURNING key, position, digest) \
        INSERT INTO stepfold_taken (number, place, key, position, digest, checksum) SELECT $1, \
        (SELECT COALESCE(MAX(place), 0) FROM stepfold_taken WHERE number = $1) \
        + ROW_NUMBER() OVER (ORDER BY ARRAY_POSITION($2, position)), key, position, digest, \
        ($3::bigint[])[ARRAY_POSITION($2, position)] FROM gone";
    FORGET_TAKEN = "DELETE FROM stepfold_taken WHERE number = $1 AND place <= \
        (SELECT MAX(place) FROM stepfold_taken WHERE number = $1) - $2::bigint";
    DELETE_INBOX = "DELETE FROM stepfold_inbox WHERE number = $1";
    DELETE_TAKEN = "DELETE FROM stepfold_taken WHERE number = $1";

    READ_CELLS = concat!(
        "SELECT key, ", cell!(), " FROM stepfold_cells WHERE stream = ", number!()
    );
    FIND_CELLS = concat!(
        "SELECT key, ", cell!(), " FROM stepfold_cells WHERE key = ANY($4::text[]) AND stream = ", number!()
    );
    READ_ITEMS = concat!(
        "SELECT ", items!(), " FROM stepfold_cells s ",
        "JOIN stepfold_lineage l ON l.number = s.stream JOIN stepfold_items i ",
        "ON i.stream = l.stream AND i.key = s.key AND i.generation = s.generation ",
        "WHERE s.value IS NULL AND s.stream = ", number!(), " ORDER BY i.version, i.place"
    );
    FIND_ITEMS = concat!(
        "SELECT ", items!(), " FROM stepfold_cells s ",
        "JOIN stepfold_lineage l ON l.number = s.stream JOIN stepfold_items i ",
        "ON i.stream = l.stream AND i.key = s.key AND i.generation = s.generation ",
        "WHERE s.key = ANY($4::text[]) AND s.stream = ", number!(), " ORDER BY i.version, i.place"
    );
    CELL_SUMS = "SELECT key, version, checksum FROM stepfold_cells WHERE stream = $1";
    PUT_CELLS = concat!(
        "INSERT INTO stepfold_cells (stream, key, ", cell!(), ") ",
        "SELECT $1, n.key, $3, n.value, n.generation, n.start, n.length, n.items, $2, n.checksum ",
        "FROM UNNEST($4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[]) ",
        "AS n(key, value, generation, start, length, items, checksum) ",
        "ON CONFLICT (stream, key) DO UPDATE SET version = EXCLUDED.version, schema = EXCLUDED.schema, ",
        "value = EXCLUDED.value, generation = EXCLUDED.generation, start = EXCLUDED.start, ",
        "length = EXCLUDED.length, items = EXCLUDED.items, checksum = EXCLUDED.checksum"
    );
    ADD_ITEMS = "INSERT INTO stepfold_items (stream, key, generation, version, place, items, checksum) \
        SELECT $1, n.key, n.generation, $2, n.place, n.items, n.checksum \
        FROM UNNEST($3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[]) \
        AS n(key, generation, place, items, checksum)";
    KEEP_PAST_SINCE = concat!(
        "INSERT INTO stepfold_past (stream, until, key, ", cell!(), ") SELECT stream, $3, key, ", cell!(),
        " FROM stepfold_cells WHERE stream = $1 AND version > $2"
    );
    DELETE_CELLS_SINCE =
        "DELETE FROM stepfold_cells WHERE stream = $1 AND version > $2 RETURNING key, version, checksum";
    // NOTE: copied inside the database, with the checksums of their contents, so that no value travels to the worker.
    FORK_CELLS = as_of!(
        concat!("INSERT INTO stepfold_cells (stream, key, ", cell!(), ")"),
        concat!("$3, key, ", cell!()),
        "RETURNING key, version, checksum"
    );
    REWIND_CELLS = as_of!(
        concat!("INSERT INTO stepfold_cells (stream, key, ", cell!(), ")"),
        "$3, key, schema, value, generation, start, length, items, $4, checksum",
        "ON CONFLICT (stream, key) DO NOTHING RETURNING key, version, checksum"
    );
    // The values at version $2, written down in stream $1, of the keys $3; and the items of their lists, as
    // session $4 has them.
    PAST_CELLS = as_of!(
        "", concat!("key, ", cell!()),
        "WHERE $3::text[] IS NULL OR key = ANY($3::text[])"
    );
    PAST_SUMS = as_of!("", "key, version, checksum", "");
    PAST_ITEMS = concat!(
        "SELECT ", items!(), " FROM (",
        as_of!("", "key, generation", "WHERE value IS NULL AND ($3::text[] IS NULL OR key = ANY($3::text[]))"),
        ") AS s JOIN stepfold_lineage l ON l.number = $4 JOIN stepfold_items i ",
        "ON i.stream = l.stream AND i.key = s.key AND i.generation = s.generation ",
        "WHERE i.version <= $2 ORDER BY i.version, i.place"
    );
    ADD_FORK = "INSERT INTO stepfold_forks (parent, number, checksum) VALUES ($1, $2, $3)";
    READ_FORKS = concat!(
        "SELECT f.number, s.id, s.parent_version, s.created, f.checksum FROM stepfold_forks f ",
        "JOIN stepfold_sessions s ON s.number = f.number WHERE f.parent = ", number!(), " ORDER BY f.number"
    );
    // NOTE: returns the checksum, which leaves the combined one of the origin.
    FORGET_FORK = "DELETE FROM stepfold_forks WHERE parent = $1 AND number = $2 RETURNING checksum";
    FORGET_FORKS = "DELETE FROM stepfold_forks WHERE parent = $1";
    FIND_LABEL = "SELECT label, version, checksum FROM stepfold_labels WHERE number = $1 AND label = $2";
    COUNT_LABELS = "SELECT COUNT(*) FROM stepfold_labels WHERE number = $1";
    READ_LABELS = concat!(
        "SELECT label, version, checksum FROM stepfold_labels WHERE number = ", number!(), " ORDER BY version, label"
    );
    ADD_LABEL = "INSERT INTO stepfold_labels (number, label, version, checksum) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (number, label) DO UPDATE SET version = EXCLUDED.version, checksum = EXCLUDED.checksum";
    DROP_LABEL = "DELETE FROM stepfold_labels WHERE number = $1 AND label = $2";
    FORGET_LABELS = "DELETE FROM stepfold_labels WHERE number = $1";
    PRUNE_LABELS = "DELETE FROM stepfold_labels WHERE number = $1 AND version < $2 RETURNING checksum";

    SESSIONS_SHARING = "SELECT s.app, s.owner, s.id FROM stepfold_sessions s WHERE s.number IN \
        (SELECT l.number FROM stepfold_lineage l WHERE l.stream = $1) ORDER BY s.number";
    // NOTE: a writer that waits for the row finds it deleted, which is a transient error.
    DROP_EMPTY_SCOPE = "DELETE FROM stepfold_scopes c WHERE c.app = $1 AND c.owner = $2 AND NOT EXISTS \
        (SELECT 1 FROM stepfold_sessions s WHERE s.app = c.app AND s.owner = c.owner)";
    SESSION_WITH_FORKS = concat!(
        with_forks!(),
        "SELECT app, owner, id FROM stepfold_sessions WHERE number IN (SELECT number FROM d) ORDER BY number"
    );
    SESSIONS_OF_USER =
        "SELECT app, owner, id FROM stepfold_sessions WHERE app = $1 AND owner = $2 ORDER BY number";
    // The event of version $2 in the history of session $1.
    ERASABLE_EVENT = "SELECT e.stream, e.id, e.at, e.body, e.seal FROM stepfold_lineage l JOIN stepfold_events e \
        ON e.stream = l.stream WHERE l.number = $1 AND e.version = $2 AND l.after < $2 AND l.upto >= $2";
    PUT_ERASED = "UPDATE stepfold_events SET body = $3, seal = $4 WHERE stream = $1 AND version = $2";
    TAKEN_KEYS = "SELECT key, position FROM stepfold_taken WHERE number = $1";
    PUT_TAKEN = "UPDATE stepfold_taken SET digest = ''::bytea, checksum = $3 WHERE number = $1 AND key = $2";
    FIND_SEAL = concat!("SELECT version, seal FROM stepfold_events WHERE stream = ", number!(), " AND id = $4");

    CELL_KEYS = "SELECT key FROM stepfold_cells WHERE stream = $1";

    // What has changed of a session's own values since version $4; `version` is that of the value.
    CHANGED_CELLS = concat!(
        "SELECT key FROM stepfold_cells WHERE stream = ", number!(), " AND version > $4 ",
        "UNION ALL SELECT key FROM stepfold_past WHERE stream = ", number!(), " AND until > $4"
    );
    // What has changed of a shared scope since version $3. Of lists: since when they were only appended to, and under which
    // schema.
    CHANGED_SHARED = concat!(
        "SELECT key, CASE WHEN value IS NULL THEN changed END, schema FROM stepfold_shared ",
        "WHERE scope = ", scope!(), " AND version > $3 UNION ALL SELECT key, NULL::bigint, NULL::bigint ",
        "FROM stepfold_removed WHERE scope = ", scope!(), " AND version > $3"
    );
    READ_SCOPES = "SELECT owner, scope, version, known, seal FROM stepfold_scopes WHERE app = $1 AND owner IN ('', $2)";

    ADD_SCOPE = "INSERT INTO stepfold_scopes (app, owner) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    FIND_SCOPE = "SELECT owner, scope, version, known, seal FROM stepfold_scopes WHERE app = $1 AND owner = $2";
    LOCK_SCOPE = "SELECT owner, scope, version, known, seal FROM stepfold_scopes WHERE app = $1 AND owner = $2 FOR UPDATE";
    MOVE_SCOPE = "UPDATE stepfold_scopes SET version = $2, known = $3, seal = $4 WHERE scope = $1";
    HAS_SESSIONS = "SELECT EXISTS (SELECT 1 FROM stepfold_sessions WHERE app = $1 AND owner = $2)";
    ADD_REMOVED = "INSERT INTO stepfold_removed (scope, key, version) SELECT $1, n.key, $3 \
        FROM UNNEST($2::text[]) AS n(key) \
        ON CONFLICT (scope, key) DO UPDATE SET version = EXCLUDED.version";
    FORGET_REMOVED = "WITH gone AS (DELETE FROM stepfold_removed WHERE scope = $1 AND version <= \
        (SELECT version FROM stepfold_removed WHERE scope = $1 ORDER BY version DESC LIMIT 1 OFFSET $2) \
        RETURNING version) SELECT COALESCE(MAX(version), 0) FROM gone";
    READ_SHARED = concat!(shared!(), " WHERE scope = ", scope!());
    FIND_SHARED = concat!(shared!(), " WHERE key = ANY($3::text[]) AND scope = ", scope!());
    SHARED_SUMS = "SELECT key, version, checksum FROM stepfold_shared WHERE scope = $1";
    READ_SHARED_ITEMS = shared_items!("WHERE TRUE");
    FIND_SHARED_ITEMS = shared_items!("WHERE i.key = ANY($3::text[])");
    // The items of the lists $3 that were added after version $4, and the newest one before them: found from the end of
    // each list back.
    SHARED_ITEMS_AFTER = concat!(
        "SELECT i.key, i.place, i.version, i.checksum, i.item FROM UNNEST($3::text[]) AS k(key) CROSS JOIN LATERAL ",
        "(SELECT COALESCE((SELECT place FROM stepfold_shared_items WHERE scope = ", scope!(),
        " AND key = k.key AND version <= $4 ORDER BY place DESC LIMIT 1), 0) AS place) AS first ",
        "JOIN stepfold_shared_items i ON i.scope = ", scope!(),
        " AND i.key = k.key AND i.place >= first.place ORDER BY i.key, i.place DESC"
    );
    DROP_SHARED_ITEMS = "DELETE FROM stepfold_shared_items i \
        USING UNNEST($2::text[], $3::bigint[]) AS gone(key, before) \
        WHERE i.scope = $1 AND i.key = gone.key AND i.place < gone.before";
    DELETE_SHARED = "DELETE FROM stepfold_shared WHERE scope = $1 AND key = ANY($2::text[])";
    PUT_SHARED = "INSERT INTO stepfold_shared (scope, key, version, changed, schema, value, start, length, checksum) \
        SELECT $1, n.key, $7, n.changed, $2, n.value, n.start, n.length, n.checksum \
        FROM UNNEST($3::text[], $4::text[], $5::bigint[], $6::bigint[], $8::bigint[], $9::bigint[]) \
        AS n(key, value, start, length, changed, checksum) \
        ON CONFLICT (scope, key) DO UPDATE SET version = EXCLUDED.version, changed = EXCLUDED.changed, \
        schema = EXCLUDED.schema, value = EXCLUDED.value, start = EXCLUDED.start, length = EXCLUDED.length, checksum = EXCLUDED.checksum";
    PUT_SHARED_ITEMS = "INSERT INTO stepfold_shared_items (scope, key, place, version, item, checksum) \
        SELECT $1, n.key, n.place, $6, n.item, n.checksum \
        FROM UNNEST($2::text[], $3::bigint[], $4::text[], $5::bigint[]) AS n(key, place, item, checksum) \
        ON CONFLICT (scope, key, place) DO UPDATE SET version = EXCLUDED.version, item = EXCLUDED.item, \
        checksum = EXCLUDED.checksum";
    SHARED_KEYS = "SELECT key FROM stepfold_shared WHERE scope = $1";
    DELETE_ALL_SHARED = "DELETE FROM stepfold_shared WHERE scope = $1";
    DELETE_REMOVED = "DELETE FROM stepfold_removed WHERE scope = $1";
    DELETE_ALL_SHARED_ITEMS = "DELETE FROM stepfold_shared_items WHERE scope = $1";
    DELETE_KEYS = "DELETE FROM stepfold_operations WHERE scope = $1";
    FIND_KEY = concat!(
        "SELECT body IN ($4, $5) FROM stepfold_operations WHERE operation = $3 AND scope = ", scope!()
    );
    ADD_KEY = "INSERT INTO stepfold_operations (scope, operation, body) VALUES ($1, $2, $3)";
    FORGET_KEYS = "DELETE FROM stepfold_operations WHERE scope = $1 AND number <= \
        (SELECT number FROM stepfold_operations WHERE scope = $1 ORDER BY number DESC LIMIT 1 OFFSET $2)";

    PAGE_OF_SCHEMAS = "SELECT id, text, checksum FROM stepfold_schemas WHERE id > $1 ORDER BY id LIMIT $2";
    PAGE_OF_SESSIONS = "SELECT number, app, owner, id FROM stepfold_sessions \
        WHERE number > $1 AND ($2::text IS NULL OR app = $2) ORDER BY number LIMIT $3";
    PAGE_OF_SCOPES = "SELECT scope, app, owner FROM stepfold_scopes \
        WHERE scope > $1 AND ($2::text IS NULL OR app = $2) ORDER BY scope LIMIT $3";
    // NOTE: a lost row of a session cannot be found by its key, so its lineage and its events are searched for numbers
    // without a row.
    LOST_SESSIONS = "SELECT l.number FROM stepfold_lineage l WHERE NOT EXISTS \
        (SELECT 1 FROM stepfold_sessions s WHERE s.number = l.number) \
        UNION SELECT e.stream FROM stepfold_events e WHERE NOT EXISTS \
        (SELECT 1 FROM stepfold_lineage l WHERE l.stream = e.stream)";
    LOST_SCOPES = "SELECT DISTINCT v.scope FROM stepfold_shared v WHERE NOT EXISTS \
        (SELECT 1 FROM stepfold_scopes c WHERE c.scope = v.scope)";

    SHARERS = "SELECT s.number, l.after, l.upto, s.oldest FROM stepfold_lineage l \
        JOIN stepfold_sessions s ON s.number = l.number WHERE l.stream = $1";
    // Events and tags of the versions from each of $2 to that of $3 go.
    SWEEP_EVENTS = "DELETE FROM stepfold_events e USING UNNEST($2::bigint[], $3::bigint[]) AS gap(first, last) \
        WHERE e.stream = $1 AND e.version BETWEEN gap.first AND gap.last";
    SWEEP_TAGS = "DELETE FROM stepfold_tags t USING UNNEST($2::bigint[], $3::bigint[]) AS gap(first, last) \
        WHERE t.stream = $1 AND t.version BETWEEN gap.first AND gap.last";
    // Values that no version from each of $2 to that of $3 had go.
    SWEEP_CELLS = "DELETE FROM stepfold_cells c WHERE c.stream = $1 AND NOT EXISTS \
        (SELECT 1 FROM UNNEST($2::bigint[], $3::bigint[]) AS left_of(first, last) WHERE c.version <= left_of.last)";
    SWEEP_PAST = "DELETE FROM stepfold_past p WHERE p.stream = $1 AND NOT EXISTS \
        (SELECT 1 FROM UNNEST($2::bigint[], $3::bigint[]) AS left_of(first, last) \
        WHERE p.version <= left_of.last AND p.until > left_of.first)";
    SWEEP_ITEMS = "DELETE FROM stepfold_items WHERE stream = $1 AND version > $2";
    SWEEP_REWINDS = "DELETE FROM stepfold_rewinds WHERE stream = $1 AND version > $2";
    // Items of the versions from each of $2 to that of $3, which lists may have.
    ITEMS_BETWEEN = "SELECT i.key, i.generation, i.version, i.place FROM stepfold_items i \
        JOIN UNNEST($2::bigint[], $3::bigint[]) AS gap(first, last) ON i.version BETWEEN gap.first AND gap.last \
        WHERE i.stream = $1 LIMIT $4";
    // The lists $2 of the sessions $1, as they are, and were at each version that these can go back to: at most $3, some
    // more than once. It is without DISTINCT, for which the server would make all of them.
    LISTS_OF = concat!(
        "SELECT l.number, c.key, c.generation, c.version FROM stepfold_lineage l ",
        "JOIN stepfold_sessions s ON s.number = l.number CROSS JOIN LATERAL ",
        "(SELECT key, generation, version FROM stepfold_cells WHERE stream = l.stream AND version <= l.upto ",
        "UNION ALL SELECT key, generation, version FROM stepfold_past WHERE stream = l.stream AND version <= l.upto ",
        "AND until > GREATEST(l.after, s.oldest)) AS c WHERE l.number = ANY($1::bigint[]) ",
        "AND GREATEST(l.after, s.oldest) <= l.upto AND c.generation IS NOT NULL AND c.key = ANY($2::text[]) LIMIT $3"
    );
    REWINDS_OF = "SELECT l.number, r.version, r.target FROM stepfold_lineage l JOIN stepfold_rewinds r \
        ON r.stream = l.stream AND r.version > l.after AND r.version <= l.upto WHERE l.number = ANY($1::bigint[]) LIMIT $2";
    DELETE_ITEMS = "DELETE FROM stepfold_items i \
        USING UNNEST($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) AS lost(key, generation, version, place) \
        WHERE i.stream = $1 AND i.key = lost.key AND i.generation = lost.generation AND i.version = lost.version \
        AND i.place = lost.place";
}

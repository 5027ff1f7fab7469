package beads

// appID marks agentinit's own files: "abd1" in PRAGMA application_id.
const appID = 0x61626431

// migrations are the steps of the schema; a step that has shipped never
// changes. Times are milliseconds since 1970, 0 = none; a text is empty if
// there is none.
func migrations() []string {
	return []string{`
CREATE TABLE beads (
	id          TEXT PRIMARY KEY,
	title       TEXT NOT NULL,
	description TEXT NOT NULL DEFAULT '',
	kind        TEXT NOT NULL,
	parent_id   TEXT REFERENCES beads(id), -- NULL for an epic
	depth       INTEGER NOT NULL,          -- 0 for an epic
	next_child  INTEGER NOT NULL DEFAULT 1,
	status      TEXT NOT NULL CHECK (status IN ('open', 'claimed', 'closed', 'deferred')),
	priority    INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 4),
	actor       TEXT NOT NULL DEFAULT '',
	created_by  TEXT NOT NULL DEFAULT '',
	tags        TEXT NOT NULL DEFAULT '[]',
	outcome     TEXT NOT NULL DEFAULT '',
	version     INTEGER NOT NULL DEFAULT 1,
	created_at  INTEGER NOT NULL,
	updated_at  INTEGER NOT NULL,
	claimed_at  INTEGER NOT NULL DEFAULT 0,
	closed_at   INTEGER NOT NULL DEFAULT 0,
	defer_until INTEGER NOT NULL DEFAULT 0,
	lease_until INTEGER NOT NULL DEFAULT 0,
	extra       TEXT NOT NULL DEFAULT '{}' -- members of an import we do not know
) STRICT;
CREATE INDEX beads_ready  ON beads(priority, created_at, id) WHERE status = 'open';
CREATE INDEX beads_list   ON beads(created_at, id);
CREATE INDEX beads_parent ON beads(parent_id, status);
CREATE INDEX beads_lease  ON beads(lease_until) WHERE status = 'claimed' AND lease_until > 0;
CREATE INDEX beads_defer  ON beads(defer_until) WHERE status = 'deferred' AND defer_until > 0;
CREATE TABLE deps (
	from_id TEXT NOT NULL REFERENCES beads(id),
	to_id   TEXT NOT NULL REFERENCES beads(id),
	type    TEXT NOT NULL,
	PRIMARY KEY (from_id, to_id, type)
) STRICT, WITHOUT ROWID;
CREATE INDEX deps_to ON deps(to_id);
CREATE TABLE comments (
	id         TEXT NOT NULL,
	bead_id    TEXT NOT NULL REFERENCES beads(id),
	author     TEXT NOT NULL DEFAULT '',
	text       TEXT NOT NULL,
	created_at INTEGER NOT NULL,
	PRIMARY KEY (bead_id, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
`, `
CREATE TABLE made (
	once TEXT PRIMARY KEY, -- Meta.Once of the call
	id   TEXT NOT NULL,    -- of the bead or comment that it made
	at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX made_at ON made(at);
`, `
ALTER TABLE deps ADD COLUMN extra TEXT NOT NULL DEFAULT '{}';          -- members of the edge beside its ends and type
ALTER TABLE beads ADD COLUMN parent_extra TEXT NOT NULL DEFAULT '{}';  -- those of the edge to parent_id
ALTER TABLE beads ADD COLUMN origin TEXT NOT NULL DEFAULT '';          -- the line that was imported
ALTER TABLE beads ADD COLUMN origin_version INTEGER NOT NULL DEFAULT 0; -- the version that origin is still true of
`}
}

// blocking is true for an edge d (from_id waits) whose target t still blocks. conditional-blocks
// waits for a failure of t, so another end of t does not release it.
const blocking = `(
	(d.type = 'blocks' AND t.status <> 'closed')
	OR (d.type = 'conditional-blocks' AND NOT (t.status = 'closed' AND lower(t.outcome) IN
		('failed', 'rejected', 'cancelled', 'aborted', 'timeout', 'error', 'wontfix')))
	OR (d.type = 'waits-for' AND EXISTS (SELECT 1 FROM beads c WHERE c.parent_id = t.id AND c.status <> 'closed')))`

package beads

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// AddDep adds an edge. If the edge exists already, nothing changes.
func (l *Local) AddDep(ctx context.Context, dep adapters.Dep) (adapters.Dep, error) {
	err := l.write(ctx, func(tx *sql.Tx) error {
		for _, id := range []string{dep.From, dep.To} {
			if _, err := load(ctx, tx, id); err != nil {
				return err
			}
		}
		if dep.Blocking() {
			if err := checkCycle(ctx, tx, dep); err != nil {
				return err
			}
		}
		extra, err := madeNow(ctx)
		if err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `INSERT INTO deps(from_id, to_id, type, extra) VALUES(?, ?, ?, ?) ON CONFLICT DO NOTHING`, dep.From, dep.To, dep.Type, extra)
		if err := touched(ctx, tx, dep.From, res, err); err != nil {
			return err
		}
		return checkLine(ctx, tx, dep.From)
	})
	return dep, err
}

// madeNow returns, in bd's words, when and by whom an edge was made.
func madeNow(ctx context.Context) (string, error) {
	made := map[string]any{"created_at": adapters.AtMillis(now())}
	if actor := adapters.MetaFrom(ctx).Actor; actor != "" {
		made["created_by"] = actor
	}
	extra, err := json.Marshal(made)
	return string(extra), err
}

// RemoveDep removes an edge. If there is no such edge, nothing changes.
func (l *Local) RemoveDep(ctx context.Context, dep adapters.Dep) error {
	return l.write(ctx, func(tx *sql.Tx) error {
		for _, id := range []string{dep.From, dep.To} {
			if _, err := load(ctx, tx, id); err != nil {
				return err
			}
		}
		res, err := tx.ExecContext(ctx, `DELETE FROM deps WHERE from_id = ? AND to_id = ? AND type = ?`, dep.From, dep.To, dep.Type)
		return touched(ctx, tx, dep.From, res, err)
	})
}

func touched(ctx context.Context, tx *sql.Tx, id string, res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil || n == 0 {
		return err
	}
	return set(ctx, tx, id, `status = status`)
}

// The waiting of beads is a relation between two moments of a bead, when it may start (gate) and
// when it is closed (end):
//
//	end(x)   comes after gate(x)
//	gate(x)  comes after end(y)          for an edge x blocks-on y
//	gate(x)  comes after kids(y)         for an edge x waits-for y
//	kids(y)  comes after gate(y), and after end(c) of each child c of y
//	gate(c)  comes after gate(parent)    a blocked parent blocks its children
//	end(p)   comes after end(c)          a parent closes after its children
//
// A cycle in this relation is work that can never be done, and only that is refused. So a parent
// that waits for its own child is a cycle. Two epics whose children wait for children of the other
// epic are a cycle only if those waits form a circle.
type moment struct {
	id   string
	what byte // 'g'ate, 'e'nd, 'k'ids
}

// checkCycle refuses dep when its target waits, over any path, for its source.
func checkCycle(ctx context.Context, tx *sql.Tx, dep adapters.Dep) error {
	start := moment{dep.To, 'e'}
	if dep.Type == adapters.DepWaitsFor {
		start.what = 'k'
	}
	return checkWait(ctx, tx, moment{dep.From, 'g'}, start)
}

// checkWait refuses that the moment goal comes after the moment start when start comes, over any
// path, after goal.
func checkWait(ctx context.Context, tx *sql.Tx, goal, start moment) error {
	came := map[moment]moment{start: {}}
	for queue := []moment{start}; len(queue) > 0; queue = queue[1:] {
		m := queue[0]
		if m == goal {
			return cycleError(goal.id, came, m)
		}
		next, err := waits(ctx, tx, m)
		if err != nil {
			return err
		}
		for _, n := range next {
			if _, seen := came[n]; !seen {
				came[n] = m
				queue = append(queue, n)
			}
		}
	}
	return nil
}

// waits lists the moments that m comes after.
func waits(ctx context.Context, tx *sql.Tx, m moment) ([]moment, error) {
	var stmt string
	switch m.what {
	case 'g':
		stmt = `SELECT to_id, CASE type WHEN 'waits-for' THEN 'k' ELSE 'e' END FROM deps
				WHERE from_id = ?1 AND type IN ('blocks', 'conditional-blocks', 'waits-for')
			UNION ALL SELECT parent_id, 'g' FROM beads WHERE id = ?1 AND parent_id IS NOT NULL`
	default: // end, kids
		stmt = `SELECT ?1, 'g' UNION ALL SELECT id, 'e' FROM beads WHERE parent_id = ?1`
	}
	return sqlite.All(ctx, tx, func(r *sql.Rows) (moment, error) {
		var id, what string
		err := r.Scan(&id, &what)
		if err != nil {
			return moment{}, err
		}
		return moment{id, what[0]}, nil
	}, stmt, m.id)
}

func cycleError(from string, came map[moment]moment, end moment) error {
	var path []string
	for m := end; m.id != ""; m = came[m] {
		path = append(path, m.id)
	}
	path = append(path, from)
	slices.Reverse(path)
	return adapters.Errorf(adapters.CodeDependencyCycle, "%s would wait for itself", from).With("path", slices.Compact(path))
}

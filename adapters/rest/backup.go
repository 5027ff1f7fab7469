package rest

import (
	"net/http"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
)

const tarType = "application/x-tar"

func needsBackup(q *request) error {
	if q.s.cfg.Backup == nil {
		return adapters.Unsupported("backup", "this box keeps no local state")
	}
	return nil
}

// boolParams reads boolean parameters of the query.
func (q *request) boolParams(params map[string]*bool) (err error) {
	v := q.URL.Query()
	for name, to := range params {
		if *to, err = boolParam(v, name); err != nil {
			return err
		}
	}
	return nil
}

func getBackup(q *request) error {
	o := backup.CopyOptions{Skip: q.URL.Query()["skip"]}
	if err := q.boolParams(map[string]*bool{"include_secrets": &o.Secrets}); err != nil {
		return err
	}
	q.readDeadline(0)
	q.writeDeadline(0)
	state, err := q.s.cfg.Backup.Copy(q.Context(), o)
	if err != nil {
		return err
	}
	// If Close cannot remove the copy, a later Copy removes it.
	defer func() { _ = state.Close() }()
	q.w.Header().Set("Content-Disposition", `attachment; filename="agentbox-backup.tar"`)
	out := &lateWriter{q: q, mt: tarType}
	return out.finish(state.Archive(q.Context(), out))
}

func postRestore(q *request) error {
	o := backup.RestoreOptions{Parts: q.URL.Query()["part"]}
	err := q.boolParams(map[string]*bool{"dry_run": &o.DryRun, "replace": &o.Replace, "include_secrets": &o.Secrets})
	if err != nil {
		return err
	}
	mt, err := q.mediaType()
	if err != nil {
		return err
	}
	if mt != tarType {
		return adapters.Errorf(adapters.CodeUnsupported, "the body must be %s", tarType)
	}
	q.readDeadline(0)
	q.writeDeadline(0)
	out, err := q.s.cfg.Backup.Restore(q.Context(), http.MaxBytesReader(q.w, q.Body, q.row.bodyLimit()), o)
	return q.result(http.StatusOK, out, err)
}

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newBackup(c *cli) *cobra.Command {
	var secrets bool
	var skip []string
	cmd := &cobra.Command{
		Use: "backup FILE|-", Short: "Write a consistent copy of all local state", Args: cobra.ExactArgs(1),
		Long: `Write a consistent copy of all local state of the running box as a tar: beads,
memory, events, tasks. Keys and identities are left out unless you ask for them
with --include-secrets; keep such a backup secret. FILE appears when it is
complete.

If a part cannot be copied, for example because its slot is degraded, there is
no backup, and the error names the part. --skip leaves a part out; the backup
records that.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, screen := terminal(c.stdout); args[0] == "-" && screen {
				return usageError("a backup is not text: name a FILE, or send standard output to a file or a pipe, not to the terminal")
			}
			if args[0] != "-" {
				if err := replaceable(args[0]); err != nil {
					return err
				}
			}
			req := api.AdapterRequest{Method: http.MethodGet, Path: "/v1/backup", Query: url.Values{"skip": skip}}
			if secrets {
				req.Query.Set("include_secrets", "true")
			}
			resp, err := c.adapters(cmd.Context(), req)
			if err != nil {
				return failed(err)
			}
			defer resp.Body.Close()
			if args[0] == "-" {
				return failed(c.copyBackup(c.stdout, resp.Body, secrets))
			}
			f, err := renameio.NewPendingFile(args[0], renameio.WithPermissions(0o600), renameio.IgnoreUmask())
			if err != nil {
				return &exitError{exitFailure, fmt.Errorf("cannot write %s: %w", args[0], withoutPath(err))}
			}
			err = c.copyBackup(f, resp.Body, secrets)
			if err == nil {
				err = f.CloseAtomicallyReplace()
			}
			if err != nil {
				// The temporary file holds a copy of the state and must not stay in the directory.
				err = errors.Join(err, f.Cleanup())
			}
			return failed(err)
		},
	}
	cmd.Flags().BoolVar(&secrets, "include-secrets", false, "with keys and identities")
	cmd.Flags().StringSliceVar(&skip, "skip", nil, "without this `PART` (beads, memory, events, tasks, profiles, identities); may be repeated")
	return cmd
}

// copyBackup copies an archive, and says so if it holds no files. If the box had to cut the archive
// short, the connection ends with an error.
func (c *cli) copyBackup(w io.Writer, r io.Reader, secrets bool) error {
	r = io.TeeReader(r, w)
	files := 0
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the backup is not complete: %w", err)
		}
		if header.Typeflag == tar.TypeReg { // a part without files still has its directory
			files++
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil { // what follows the end of the archive
		return fmt.Errorf("the backup is not complete: %w", err)
	}
	if files <= 1 { // the list of the parts
		hint := "; keys and identities need --include-secrets"
		if secrets {
			hint = ""
		}
		line(c.stderr, "agentctl: the backup holds no files%s", hint)
	}
	return nil
}

// restored is the result of restoring a backup.
type restored struct {
	DryRun bool `json:"dry_run"`
	Parts  []struct {
		Name  string `json:"name"`
		Files int    `json:"files"`
		Bytes int64  `json:"bytes"`
		State string `json:"state"`
		Kept  string `json:"kept"`
	} `json:"parts"`
}

func newRestore(c *cli) *cobra.Command {
	var dry, replace, secrets bool
	var parts []string
	cmd := &cobra.Command{
		Use: "restore FILE|-", Short: "Put a backup back in place", Args: cobra.ExactArgs(1),
		Long: `Put a backup back in place in the running box. agentinit checks the whole backup
before it changes anything: every checksum, and that this version can open each
part. While the state of a slot is replaced, the slot is out of service. Its
former state is kept beside it as NAME.before-TIME. Restore replaces state that
is in use only with --replace, and not while tasks run.

If a box has lost its state, start it empty, then restore with --replace: the
new state, too, is in use. Keys and identities are put back only with
--include-secrets; agentinit reads them at its next start.
First stop the programs that use the same files.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := c.open(args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			query := url.Values{"part": parts}
			for name, on := range map[string]bool{"dry_run": dry, "replace": replace, "include_secrets": secrets} {
				if on {
					query.Set(name, "true")
				}
			}
			raw, err := c.answered(cmd.Context(), api.AdapterRequest{
				Method: http.MethodPost, Path: "/v1/restore", Query: query, Header: http.Header{"Content-Type": {"application/x-tar"}}, Body: in,
			})
			return show(c, raw, err, func(r restored) {
				rows := make([][]cell, len(r.Parts))
				for i, p := range r.Parts {
					rows[i] = texts(p.Name, p.State, strconv.Itoa(p.Files), strconv.FormatInt(p.Bytes, 10), p.Kept)
				}
				c.table(titled("PART", "STATE", "FILES", "BYTES", "BEFORE"), rows)
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only check the whole backup")
	cmd.Flags().BoolVar(&replace, "replace", false, "also replace state that is in use; the old state is kept under another name")
	cmd.Flags().BoolVar(&secrets, "include-secrets", false, "with keys and identities")
	cmd.Flags().StringSliceVar(&parts, "part", nil, "this `PART` alone (beads, memory, events, tasks, profiles, identities); may be repeated")
	return cmd
}

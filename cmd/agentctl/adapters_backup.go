package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newBackup(c *cli) *cobra.Command {
	var secrets bool
	cmd := &cobra.Command{
		Use: "backup FILE|-", Short: "Write a consistent copy of all local state", Args: cobra.ExactArgs(1),
		Long: `Write a consistent copy of all local state of the running box as a tar: beads,
memory, events, tasks. Keys and identities are left out unless asked for; a file
that holds them is as secret as they are. FILE appears when it is complete.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := api.AdapterRequest{Method: http.MethodGet, Path: "/v1/backup"}
			if secrets {
				req.Query = url.Values{"include_secrets": {"true"}}
			}
			resp, err := c.client().Adapters(cmd.Context(), req)
			if err != nil {
				return failed(err)
			}
			defer resp.Body.Close()
			if args[0] == "-" {
				return failed(copyTar(c.stdout, resp.Body))
			}
			f, err := renameio.NewPendingFile(args[0], renameio.WithPermissions(0o600), renameio.IgnoreUmask())
			if err != nil {
				return &exitError{exitFailure, err}
			}
			err = copyTar(f, resp.Body)
			if err == nil {
				return failed(f.CloseAtomicallyReplace())
			}
			return failed(errors.Join(err, f.Cleanup()))
		},
	}
	cmd.Flags().BoolVar(&secrets, "include-secrets", false, "with keys and identities")
	return cmd
}

// copyTar copies an archive. One that the box had to cut short ends in an error
// of the connection.
func copyTar(w io.Writer, r io.Reader) error {
	if _, err := io.Copy(w, r); err != nil {
		return fmt.Errorf("the backup is not whole: %w", err)
	}
	return nil
}

func newRestore(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "restore FILE|- DIR", Short: "Unpack a backup into an empty directory", Args: cobra.ExactArgs(2),
		Long: `Unpack a backup into DIR, which must be empty or not exist. Each part becomes a
directory of its name below it; move the parts to where the manifest says while
agentinit does not run. Nothing that exists is overwritten, and nothing is
written outside DIR. A damaged backup leaves what was unpacked so far.`,
		RunE: func(_ *cobra.Command, args []string) error {
			in := io.NopCloser(c.stdin)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return &exitError{exitFailure, err}
				}
				in = f
			}
			defer in.Close()
			n, err := unpack(in, args[1])
			if err != nil {
				return &exitError{exitFailure, fmt.Errorf("cannot restore: %w", err)}
			}
			line(c.stdout, "%d files restored to %s", n, printable(args[1]))
			return nil
		},
	}
}

// maxRestored bounds the whole of what is unpacked, in bytes.
const maxRestored = 1 << 40

func unpack(r io.Reader, dir string) (files int, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	if old, err := os.ReadDir(dir); err != nil || len(old) > 0 {
		return 0, errors.Join(err, fmt.Errorf("%s is not empty", dir))
	}
	// Beneath a root descriptor no name can lead out, whatever the archive says.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	t := tar.NewReader(io.LimitReader(r, maxRestored))
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return files, err
		}
		name := filepath.Clean(strings.TrimSuffix(h.Name, "/"))
		mode := os.FileMode(h.Mode) & 0o777
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, mode|0o700)
		case tar.TypeReg:
			files++
			err = writeOne(root, name, mode, t)
		default:
			err = fmt.Errorf("%s is neither a file nor a directory", printable(h.Name))
		}
		if err != nil {
			return files, err
		}
	}
}

func writeOne(root *os.Root, name string, mode os.FileMode, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Sync(), f.Close())
}

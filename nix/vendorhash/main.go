// Command vendorhash keeps nix/hashes.json up to date: the hash that Nix's buildGoModule expects
// for the tree of `go mod vendor`. It owns only that file and must never need Nix. With -check it
// writes no file and exits 1 if nix/hashes.json is out of date.
//
// The hash is the SHA-256 of the NAR serialisation of the tree (the Nix manual, "Nix Archive (NAR)
// format"): names, contents, links and the executable bit of the owner.
package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "only compare")
	file := flag.String("file", "nix/hashes.json", "the `file` to keep")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: vendorhash [-check] [-file FILE] VENDOR-DIRECTORY")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *file, *check); err != nil {
		fmt.Fprintln(os.Stderr, "vendorhash:", err)
		os.Exit(1)
	}
}

type hashes struct {
	VendorHash string `json:"vendorHash"`
}

func run(dir, file string, check bool) error {
	sum, err := hashTree(dir)
	if err != nil {
		return err
	}
	if check {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var have hashes
		if err := json.Unmarshal(data, &have); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if have.VendorHash != sum {
			return fmt.Errorf("%s says %s, go.mod gives %s: run make vendor-hash", file, have.VendorHash, sum)
		}
		return nil
	}
	data, err := json.MarshalIndent(hashes{VendorHash: sum}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// hashTree returns "sha256-" and the SHA-256 of dir's NAR in base64.
func hashTree(dir string) (string, error) {
	h := sha256.New()
	token(h, "nix-archive-1")
	if err := node(h, dir); err != nil {
		return "", err
	}
	return "sha256-" + base64.StdEncoding.EncodeToString(h.Sum(nil)), nil
}

// node writes one file, link or directory. The writer is a hash, so writes never fail.
func node(w io.Writer, name string) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	token(w, "(")
	token(w, "type")
	switch {
	case info.Mode().IsRegular():
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		token(w, "regular")
		if info.Mode()&0o100 != 0 {
			token(w, "executable")
			token(w, "")
		}
		token(w, "contents")
		token(w, string(data))
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(name)
		if err != nil {
			return err
		}
		token(w, "symlink")
		token(w, "target")
		token(w, target)
	case info.IsDir():
		token(w, "directory")
		entries, err := os.ReadDir(name) // sorted by name in byte order
		if err != nil {
			return err
		}
		for _, e := range entries {
			token(w, "entry")
			token(w, "(")
			token(w, "name")
			token(w, e.Name())
			token(w, "node")
			if err := node(w, filepath.Join(name, e.Name())); err != nil {
				return err
			}
			token(w, ")")
		}
	default:
		return fmt.Errorf("%s: a NAR holds only files, links and directories", name)
	}
	token(w, ")")
	return nil
}

// token writes the length, the bytes, and zeros up to a multiple of eight bytes.
func token(w io.Writer, s string) {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
	w.Write(n[:])
	io.WriteString(w, s)
	w.Write(make([]byte, (8-len(s)%8)%8))
}

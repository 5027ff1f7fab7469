package solid

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"os"
)

const (
	// maxAnswer bounds a listing, and another form of a document.
	maxAnswer = 16 << 20
	// maxShort is how much of such an answer is kept in memory.
	maxShort = 64 << 10
)

// spool holds an answer that is made before it is sent. A long one is in a file without a name: a client that reads slowly
// does not take memory.
type spool struct {
	store *store
	what  string // for errors
	sum   hash.Hash
	size  int64
	short bytes.Buffer
	file  *os.File // nil while short holds all
}

func (s *store) spool(what string) *spool { return &spool{store: s, what: what, sum: sha256.New()} }

// Write adds to the answer. Its errors are faults.
func (p *spool) Write(b []byte) (int, error) {
	if p.size += int64(len(b)); p.size > maxAnswer {
		return 0, overLimit(p.what, maxAnswer)
	}
	p.sum.Write(b)
	if p.file == nil && p.size <= maxShort {
		return p.short.Write(b)
	}
	if err := p.spill(); err != nil {
		return 0, full(err)
	}
	n, err := p.file.Write(b)
	if err != nil {
		err = full(err)
	}
	return n, err
}

// spill moves what there is to a file.
func (p *spool) spill() error {
	if p.file != nil {
		return nil
	}
	name := rand.Text()
	f, err := p.store.private.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	p.file = f
	if err := p.store.private.Remove(name); err != nil {
		return err
	}
	_, err = f.Write(p.short.Bytes())
	p.short = bytes.Buffer{}
	return err
}

func (p *spool) tag() string { return `"` + hex.EncodeToString(p.sum.Sum(nil)[:12]) + `"` }

func (p *spool) reader() io.ReadSeeker {
	if p.file != nil {
		return io.NewSectionReader(p.file, 0, p.size)
	}
	return bytes.NewReader(p.short.Bytes())
}

func (p *spool) close() {
	if p.file != nil {
		p.file.Close()
	}
}

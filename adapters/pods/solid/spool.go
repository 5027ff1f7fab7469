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
	// maxHeld bounds the long answers in memory: if the file system is full or read-only, who wants to delete documents must still
	// be able to list them.
	maxHeld = 4 * maxAnswer
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

	trouble error // why a long answer is in memory
	held    int64
}

func (s *store) spool(what string) *spool { return &spool{store: s, what: what, sum: sha256.New()} }

// Write adds to the answer. Its errors are faults.
func (p *spool) Write(b []byte) (int, error) {
	if p.size += int64(len(b)); p.size > maxAnswer {
		return 0, overLimit(p.what, maxAnswer)
	}
	p.sum.Write(b)
	if p.file == nil && p.size > maxShort && p.trouble == nil {
		p.trouble = p.spill()
	}
	if p.file != nil {
		n, err := p.file.Write(b)
		if err == nil {
			return n, nil
		}
		p.trouble = err
		if err := p.unspill(p.size - int64(len(b))); err != nil {
			return 0, full(err)
		}
	}
	if p.trouble != nil && !p.hold() {
		return 0, full(p.trouble)
	}
	return p.short.Write(b)
}

// spill moves what there is to a file.
func (p *spool) spill() error {
	name := rand.Text()
	f, err := p.store.private.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = p.store.private.Remove(name)
	if err == nil {
		_, err = f.Write(p.short.Bytes())
	}
	if err != nil {
		f.Close()
		return err
	}
	p.file, p.short = f, bytes.Buffer{}
	return nil
}

// unspill moves the first n bytes of the file back to memory.
func (p *spool) unspill(n int64) error {
	_, err := io.Copy(&p.short, io.NewSectionReader(p.file, 0, n))
	p.file.Close()
	p.file = nil
	return err
}

// hold counts the answer among those in memory; false if there is no room.
func (p *spool) hold() bool {
	more := p.size - p.held
	if p.store.held.Add(more) > maxHeld {
		p.store.held.Add(-more)
		return false
	}
	p.held += more
	return true
}

func (p *spool) tag() string { return `"` + hex.EncodeToString(p.sum.Sum(nil)[:12]) + `"` }

func (p *spool) reader() io.ReadSeeker {
	if p.file != nil {
		return io.NewSectionReader(p.file, 0, p.size)
	}
	return bytes.NewReader(p.short.Bytes())
}

func (p *spool) close() {
	p.store.held.Add(-p.held)
	if p.file != nil {
		p.file.Close()
	}
}

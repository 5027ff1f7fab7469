package solid

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// upload is a body that was received and is not yet a document.
type upload struct {
	s    *store
	file *os.File
	name string // in private; "" once it has become a document
	size int64
	sum  [sha256.Size]byte
	body *metered // nil: not counted
}

// metered is a body whose bytes count among those of uploads in progress, which no quota counts yet.
type metered struct {
	io.Reader
	total *atomic.Int64
	n     int64
}

func (m *metered) Read(b []byte) (int, error) {
	n, err := m.Reader.Read(b)
	m.n += int64(n)
	if m.total.Add(int64(n)) > maxUploads {
		return n, busy()
	}
	return n, err
}

func (m *metered) release() {
	m.total.Add(-m.n)
	m.n = 0
}

// receive writes a body of at most limit bytes to a temporary file and syncs it.
func (s *store) receive(body io.Reader, limit int64) (*upload, error) {
	u := &upload{s: s, name: rand.Text()}
	var err error
	if u.file, err = s.private.OpenFile(u.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode); err != nil {
		return nil, broken("the document cannot be stored", err)
	}
	u.body, _ = body.(*metered)
	sum := sha256.New()
	from := &countedReader{r: body}
	_, err = io.Copy(io.MultiWriter(u.file, sum), io.LimitReader(from, limit+1))
	switch u.size = from.n; {
	case from.err != nil:
		err = unread(from.err)
	case err != nil:
		err = full(err)
	case from.n > limit:
		err = overLimit("the body", limit)
	default:
		if err = u.file.Sync(); err != nil {
			err = full(err)
		}
	}
	if err != nil {
		u.drop()
		return nil, err
	}
	sum.Sum(u.sum[:0])
	return u, nil
}

// full says that the file system has no room, where that is why.
func full(err error) *fault {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		f := faulty(adapters.CodePayloadTooLarge, "the file system of the pods has no room for the document").with(507) // Insufficient Storage, RFC 4918
		f.cause = err
		return f
	}
	return broken("the document cannot be stored", err)
}

// countedReader keeps failures of the client apart from those of the file.
type countedReader struct {
	r   io.Reader
	n   int64
	err error
}

func (c *countedReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// drop closes the file, and removes it if it has not become a document.
func (u *upload) drop() {
	u.file.Close()
	if u.body != nil {
		defer u.body.release()
	}
	if u.name != "" {
		_ = u.s.private.Remove(u.name) // the next start of the server removes it
	}
}

func (u *upload) become(d *safeopen.Directory, name, contentType string, old *document) (document, error) {
	info, err := u.file.Stat()
	if err == nil {
		err = u.s.setType(d, name, contentType, describe(info).inode, old)
	}
	if err == nil {
		if err = u.s.rename(u.name, d, name); err == nil {
			u.name = ""
			err = d.Sync()
		}
	}
	if err == nil {
		info, err = u.file.Stat()
	}
	if err != nil {
		return document{}, full(err)
	}
	doc := describe(info)
	doc.contentType = contentType
	return doc, nil
}

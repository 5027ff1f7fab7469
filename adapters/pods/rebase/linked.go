package rebase

import (
	"bytes"
	"fmt"

	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
)

// linked moves a JSON-LD document. Which of its texts are IRIs, its context says: the document is
// expanded, and goes on in its expanded form where that has to change. A context that is not in the
// document itself is not fetched: such a document is an error.
func linked(m Move, path string, doc []byte) ([]byte, error) {
	from, to, err := m.bases(path)
	if err != nil {
		return nil, err
	}
	moved, err := rdf.Expand(doc, from, m.IRI)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	there, err := rdf.Expand(doc, to, nil)
	if err == nil && bytes.Equal(moved, there) {
		return doc, nil // as it is, it says the same on the other side
	}
	return moved, nil
}

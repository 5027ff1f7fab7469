package main

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Where the image keeps the root certificates. SSL_CERT_FILE in oci.json names the
// first, which is nixpkgs' name too; the second is Debian's, which much software
// has built in.
const (
	rootsFile = "etc/ssl/certs/ca-bundle.crt"
	rootsLink = "etc/ssl/certs/ca-certificates.crt"
)

// roots are the certificates of Mozilla's trust store as pinned by go.mod, so that
// an image does not depend on the machine that builds it. Roots that Mozilla trusts
// only in part (certificates issued before some date) are left out: a file of
// certificates cannot say so.
func roots() []entry {
	var out bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}) // a buffer takes everything
		}
	}
	return []entry{
		{name: rootsFile, mode: 0o644, data: out.Bytes()},
		{name: rootsLink, mode: 0o777, link: "ca-bundle.crt"},
	}
}

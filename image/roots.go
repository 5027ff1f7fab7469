package main

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The places of the root certificates in the image. SSL_CERT_FILE in oci.json names the first one,
// which is also the path in nixpkgs. The second one is Debian's path, which is built into much
// software.
const (
	rootsFile = "etc/ssl/certs/ca-bundle.crt"
	rootsLink = "etc/ssl/certs/ca-certificates.crt"
)

// roots are the certificates of Mozilla's trust store in the version that go.mod pins, so that an
// image does not depend on the build machine. Mozilla trusts some roots only in part (for
// certificates issued before some date). Those are left out, because a file of certificates cannot
// express that limit.
func roots() []entry {
	var out bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}) // a write to a buffer never fails
		}
	}
	return []entry{
		{name: rootsFile, mode: 0o644, data: out.Bytes()},
		{name: rootsLink, mode: 0o777, link: "ca-bundle.crt"},
	}
}

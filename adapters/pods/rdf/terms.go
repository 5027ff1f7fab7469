package rdf

// The namespaces of the vocabularies that Solid uses, that of RDF itself first, and terms of them.
const (
	NS         = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
	ACL        = "http://www.w3.org/ns/auth/acl#"
	DCTerms    = "http://purl.org/dc/terms/"
	FOAF       = "http://xmlns.com/foaf/0.1/"
	LDP        = "http://www.w3.org/ns/ldp#"
	MediaTypes = "http://www.w3.org/ns/iana/media-types/"
	Notify     = "http://www.w3.org/ns/solid/notifications#"
	PIM        = "http://www.w3.org/ns/pim/space#"
	Solid      = "http://www.w3.org/ns/solid/terms#"
	Stat       = "http://www.w3.org/ns/posix/stat#"
	XSD        = "http://www.w3.org/2001/XMLSchema#"

	Type     = NS + "type"
	Contains = LDP + "contains"
	Modified = DCTerms + "modified"
	Size     = Stat + "size"  // bytes
	Mtime    = Stat + "mtime" // seconds since 1970
)

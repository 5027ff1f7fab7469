package pods

// The terms that this client uses.
const (
	ldpContains   = "http://www.w3.org/ns/ldp#contains"
	rdfType       = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
	dctModified   = "http://purl.org/dc/terms/modified"
	posixSize     = "http://www.w3.org/ns/posix/stat#size"
	posixMtime    = "http://www.w3.org/ns/posix/stat#mtime"
	ianaTypes     = "http://www.w3.org/ns/iana/media-types/"
	notifications = "http://www.w3.org/ns/solid/notifications#"
)

// acceptRDF asks for what rdf.ParseLenient reads, the cheapest first.
const acceptRDF = "text/turtle, application/ld+json;q=0.9, application/n-triples;q=0.8"

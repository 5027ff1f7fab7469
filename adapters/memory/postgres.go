package memory

type postgres struct {
	backend
	vector bool
}

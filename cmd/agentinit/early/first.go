//go:build !cgo

package early

// A program without cgo has this package's handler from the first instant at which
// its runtime has any.
//
// The runtime calls a function named by the variable _cgo_sigaction, if there is one,
// in place of rt_sigaction(2). The variable is made for package runtime/cgo
// (runtime/cgo_sigaction.go), which this program does not have. The function here
// (first_amd64.s, first_arm64.s) puts the handler in the place of the runtime's and
// answers EINVAL, upon which the runtime makes the system call itself, with what it finds
// then. It runs before there is a goroutine, and uses no stack.
//
// With cgo, as the race detector needs it, install does the same when this package is
// initialised.

package ready

import (
	"errors"
	"net"
	"syscall"

	"github.com/dreamlab-ai/agentinit/internal/hostname"
)

// unaskedError is why agentinit could not make a check. The reason does not lie with the program that is
// checked, but often with another one. A restart would not help, so the attempt counts neither as a
// success nor as a failure. The kubelet treats its own errors in the same way
// (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-probes: "Unknown").
type unaskedError string

func (e unaskedError) Error() string { return "cannot ask: " + string(e) }

func unasked(err error) bool {
	_, ok := errors.AsType[unaskedError](err)
	return ok
}

// obstacle is why a probe that ended with err could not ask. It is empty if the probe has asked.
func obstacle(err error) string {
	if files, ok := errors.AsType[*hostname.FilesError](err); ok {
		return files.Error()
	}
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL) && !addressMissing(err):
		return "other processes use all local ports (net.ipv4.ip_local_port_range)"
	case errors.Is(err, syscall.EMFILE):
		return "agentinit has no file descriptor left"
	case errors.Is(err, syscall.ENFILE):
		return "the machine has no open file left (fs.file-max)"
	case errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM):
		return "the kernel has no memory left for it"
	}
	return ""
}

// addressMissing tells whether a connection failed because this machine has no address from which the
// target can be reached, as with ::1 where IPv6 is off. UDP fails alike then, and sends nothing.
func addressMissing(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return false
	}
	target, ok := op.Addr.(*net.TCPAddr)
	if !ok {
		return false
	}
	conn, err := net.DialUDP("udp", nil, (*net.UDPAddr)(target))
	if err == nil {
		_ = conn.Close() // nothing was sent
	}
	return errors.Is(err, syscall.EADDRNOTAVAIL)
}

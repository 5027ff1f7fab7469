package e2e

import (
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// mostRights is the maximum number of descriptors in one message (SCM_MAX_FD in include/net/scm.h).
const mostRights = 253

// passRights sends the start of a request with mostRights descriptors.
func passRights(t *testing.T, conn *net.UnixConn, fd int) {
	t.Helper()
	rights := syscall.UnixRights(slices.Repeat([]int{fd}, mostRights)...)
	if _, _, err := conn.WriteMsgUnix([]byte("GET /health HTTP/1.1\r\nHost: box\r\nConnection: close\r\n"), rights, nil); err != nil {
		t.Fatal(err)
	}
}

// agentinit does not keep descriptors that come with a request to the control socket.
func TestDescriptorsOverTheControlSocket(t *testing.T) {
	b := boot(t, asPID1, header+"[programs.web]\ncommand = ['TESTPROG', 'sleep']\nrequired = true\n")
	b.sealed()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := b.descriptors()
	var conns []*net.UnixConn
	for range 20 {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.socket(), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		passRights(t, conn, int(null.Fd()))
		conns = append(conns, conn)
	}
	// An answer shows that agentinit has read the descriptors of the request.
	for _, conn := range conns[1:] {
		if _, err := io.WriteString(conn, "\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			t.Fatalf("%q %v", answer, err)
		}
	}
	if now := b.descriptors(); now >= before+mostRights {
		t.Errorf("agentinit had %d descriptors and has %d", before, now)
	}

	// The positive test: a reader that asks for the descriptors gets them, so the test did send
	// them.
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[1])
	file := os.NewFile(uintptr(pair[0]), "pair")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	passRights(t, conn.(*net.UnixConn), int(null.Fd()))
	oob := make([]byte, syscall.CmsgSpace(4*mostRights))
	_, n, _, _, err := syscall.Recvmsg(pair[1], make([]byte, 100), oob, 0)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatal(messages, err)
	}
	got, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(got) != mostRights {
		t.Errorf("%d descriptors were sent: %v", len(got), err)
	}
	for _, fd := range got {
		syscall.Close(fd)
	}
}

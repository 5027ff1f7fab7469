// Package capability owns the names and numbers of the capabilities of Linux (capabilities(7)).
package capability

import (
	"slices"
	"strings"
)

// names are in the order of the numbers, without CAP_ (linux/capability.h). It is a literal, because a
// call would run at each start of agentinit.
var names = [...]string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// Number is the number of a capability, with or without "CAP_", in upper or lower case.
func Number(name string) (number int, ok bool) {
	number = slices.Index(names[:], strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
	return number, number >= 0
}

// Name is the name of a capability number, without "CAP_"; "" for an unknown number.
func Name(number int) string {
	if number < 0 || number >= len(names) {
		return ""
	}
	return names[number]
}

package filter

import "strings"

// capabilities are the names of capabilities(7) in the order of their numbers,
// without CAP_.
var capabilities = strings.Fields(`
	CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
	NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
	SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
	AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ
	PERFMON BPF CHECKPOINT_RESTORE`)

// Capability is the number of a capability, with or without "CAP_", in upper or lower case.
func Capability(name string) (number int, ok bool) {
	name = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	for i, c := range capabilities {
		if c == name {
			return i, true
		}
	}
	return 0, false
}

// CapabilityName is the name of a capability number, without "CAP_"; "" for an unknown number.
func CapabilityName(number int) string {
	if number < 0 || number >= len(capabilities) {
		return ""
	}
	return capabilities[number]
}

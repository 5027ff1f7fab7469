package memory

func asCrashChild() bool { return false }

/* Becomes the init under test. As PID 1 it finds what a container engine gives it:
   a /proc of its own, an empty /run in memory, and cgroups that it can only read,
   unless BENCH_CGROUPS is set. It says "S" at the last moment, and execs: the clock
   of every measurement starts there. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 2) return 2;
	if (getpid() == 1) {
		mount("none", "/", 0, MS_REC | MS_PRIVATE, 0);
		mount("proc", "/proc", "proc", 0, 0);
		mount("tmpfs", "/run", "tmpfs", 0, 0);
		if (!getenv("BENCH_CGROUPS")) {
			/* One of them is the version 2 hierarchy; the other is none, or tmpfs. */
			mount("none", "/sys/fs/cgroup", 0, MS_REMOUNT | MS_BIND | MS_RDONLY, 0);
			mount("none", "/sys/fs/cgroup/unified", 0, MS_REMOUNT | MS_BIND | MS_RDONLY, 0);
		}
	}
	int fifo = open(getenv("BENCH_FIFO"), O_WRONLY | O_CLOEXEC);
	if (fifo < 0 || write(fifo, "S             0\n", 16) != 16) return 8;
	execv(argv[1], argv + 1);
	return 127;
}

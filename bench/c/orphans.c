/* Makes N orphans, each an already dead grandchild, then says "D". */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
	(void)argc;
	int n = atoi(argv[1]), fifo = open(getenv("BENCH_FIFO"), O_WRONLY | O_CLOEXEC);
	if (fifo < 0) return 8;
	for (int i = 0; i < n; i++) {
		pid_t p = vfork();
		if (p == 0) {
			if (vfork() == 0) _exit(i & 127);
			_exit(0);
		}
		waitpid(p, 0, 0);
	}
	if (write(fifo, "D             0\n", 16) != 16) return 9;
	for (;;) pause();
}

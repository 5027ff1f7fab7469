/* The floor: the same system calls with nothing around them. Starts N copies of a
   program with two pipes each, reaps, restarts what a signal killed, and on
   SIGTERM passes it on, kills after two seconds, and waits for all. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t stopping;
static pid_t *pids;
static int n;

static void stop(int sig) {
	stopping = 1;
	for (int i = 0; i < n; i++) if (pids[i] > 0) kill(pids[i], sig == SIGALRM ? SIGKILL : SIGTERM);
	if (sig == SIGTERM) alarm(2);
}

static pid_t spawn(char **argv) {
	int out[2], err[2];
	if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) exit(7);
	pid_t p = vfork();
	if (p == 0) {
		setsid();
		dup2(out[1], 1);
		dup2(err[1], 2);
		execv(argv[0], argv);
		_exit(127);
	}
	close(out[1]); close(err[1]); close(out[0]); close(err[0]);
	return p;
}

int main(int argc, char **argv) {
	if (argc < 3) return 2;
	n = atoi(argv[1]);
	pids = calloc(n + 1, sizeof *pids);
	struct sigaction sa = {0};
	sa.sa_handler = stop;
	sigaction(SIGTERM, &sa, 0);
	sigaction(SIGALRM, &sa, 0);
	for (int i = 0; i < n; i++) pids[i] = spawn(argv + 2);
	for (;;) {
		int st;
		pid_t p = waitpid(-1, &st, 0);
		if (p < 0 && errno == EINTR) continue;
		if (p < 0 && stopping) return 0;
		if (p < 0) { pause(); continue; }
		for (int i = 0; i < n; i++)
			if (pids[i] == p) pids[i] = stopping || !WIFSIGNALED(st) ? 0 : spawn(argv + 2);
	}
}

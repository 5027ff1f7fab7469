/* The trivial supervised program: says "B" and its pid on the fifo when it
   begins, "T" when it has handled SIGTERM. With IGNORE_TERM it ignores TERM. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fifo;

static void say(char kind) {
	char m[17];
	snprintf(m, sizeof m, "%c%14d\n", kind, (int)getpid());
	if (write(fifo, m, 16) != 16) _exit(9);
}

static void term(int sig) { (void)sig; say('T'); _exit(0); }

int main(void) {
	struct sigaction sa = {0};
	sa.sa_handler = getenv("IGNORE_TERM") ? SIG_IGN : term;
	sigaction(SIGTERM, &sa, 0);
	fifo = open(getenv("BENCH_FIFO"), O_WRONLY | O_CLOEXEC);
	if (fifo < 0) return 8;
	say('B');
	for (;;) pause();
}

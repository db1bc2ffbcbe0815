// pause is the first process of each pod: it holds the pod's namespaces until it is told to end.
#include <signal.h>
#include <unistd.h>

static void end(int signal)
{
	(void)signal;
	_exit(0);
}

int main(void)
{
	signal(SIGTERM, end);
	signal(SIGINT, end);
	signal(SIGCHLD, SIG_IGN); // what it inherits is not left a zombie
	for (;;)
		pause();
}

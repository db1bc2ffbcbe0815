// launch starts a program with an empty environment. Linked statically, nothing can be preloaded into it.
#include <unistd.h>

int main(int argc, char **argv)
{
	char *none[] = {NULL};
	if (argc > 1)
		execve(argv[1], argv + 1, none);
	return 127;
}

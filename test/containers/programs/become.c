// become USER PROGRAM [ARGUMENT...] runs a program as another user and with an empty environment, as "su -" does. It is
// linked statically, so nothing can be preloaded into it.
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char *none[] = {NULL};
	if (argc < 3)
		return 2;
	int id = atoi(argv[1]);
	if (setgroups(0, NULL) != 0 || setgid((gid_t)id) != 0 || setuid((uid_t)id) != 0) {
		perror("become");
		return 3;
	}
	execve(argv[2], argv + 2, none);
	perror(argv[2]);
	return 127;
}

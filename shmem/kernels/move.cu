#define LSHMEM_DIRECT 1
#include "move.h"

#define LSHMEM_DIRECT true
#include "move.h"

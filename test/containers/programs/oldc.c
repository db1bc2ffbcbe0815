// oldc stands in for the C library of an image that is too old: it has the versions of glibc 2.12.
int lgpu_test_old(void);
int lgpu_test_old(void) { return 0; }

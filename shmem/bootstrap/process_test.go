package bootstrap

const scriptVariable = "BOOTSTRAP_TEST_SCRIPT"

func process() int { return 0 }

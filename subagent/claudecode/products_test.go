package claudecode_test

func host() {}

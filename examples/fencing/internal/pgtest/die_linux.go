package pgtest

import "syscall"

// dieWithUs makes a child end when this process does, however it does.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

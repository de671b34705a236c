//go:build unix && !linux

package pgtest

import "syscall"

// dieWithUs does nothing: only Linux can.
func dieWithUs(*syscall.SysProcAttr) {}

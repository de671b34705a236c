//go:build unix && !linux

package redistest

import "syscall"

// childAttributes does without Pdeathsig, which only Linux has: a child
// outlives a parent that is killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

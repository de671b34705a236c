// Package interop has tests of locks shared with other libraries. It is a module
// of its own, so that none of them is a dependency of the package.
package interop

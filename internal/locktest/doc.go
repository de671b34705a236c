// Package locktest is what the tests of locks share: clients, scenes, scripted servers,
// checks, and the little that they look at behind the API (inside.go).
package locktest

// Package orphans releases owners that nobody believes in, and again those that were released and
// may have come back.
package orphans

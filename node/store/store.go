// Package store keeps what must survive the daemon in one file.
package store

//go:build race

package shmem

const raceDetector = true

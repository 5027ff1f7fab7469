//go:build !amd64

package main

func compatWays() []way { return nil }

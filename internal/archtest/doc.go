// Package archtest checks the shape of the module on every run of go test: which package may import which, who joins
// each goroutine, what no package may do, and that what the documentation names exists. The rules and the tables they
// read are test code, so nothing here is linked into a program. Floor T.
package archtest

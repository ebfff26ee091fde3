/** The parts that the modules of the engines share. */
package dev.jobwire;

/** What the modules of the engines share. */
package dev.jobwire;

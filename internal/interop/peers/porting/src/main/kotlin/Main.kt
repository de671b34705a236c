package porting

import java.util.concurrent.CompletableFuture
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.Semaphore
import kotlin.system.exitProcess
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.future.await
import kotlinx.coroutines.runBlocking
import org.redisson.api.RedissonClient

// One idiom under way, on a thread of its own.
private class Call(val number: String, val thread: Thread) {
    private val goOn = CompletableFuture<Unit>()

    // Tells the test that the job runs, and what it was given, and waits until the test lets it end.
    fun inside(value: Any = "") {
        say("inside $number $value")
        goOn.join()
    }

    suspend fun insideCoroutine() {
        say("inside $number ")
        goOn.await()
    }

    fun end() {
        goOn.complete(Unit)
    }
}

private fun say(line: String) = synchronized(System.out) { println(line) }

private fun outcome(ran: Boolean) = if (ran) "done" else "busy"

private fun run(idiom: String, redisson: RedissonClient, name: String, call: Call): Any {
    val lock = redisson.getLock(name)
    val fenced = redisson.getFencedLock(name)
    when (idiom) {
        "order" -> ship(redisson, name.removePrefix("lock:order:")) { call.inside() }
        "lock" -> runLocked(lock) { call.inside() }
        "lock-withLock" -> runWithLock(lock) { call.inside() }
        "lease" -> runForTenSeconds(lock) { call.inside() }
        "try-now" -> return outcome(runIfFree(lock) { call.inside() })
        "try-lease" -> return outcome(runSoonAndBriefly(lock) { call.inside() })
        "reentry" -> cancel(redisson, name) { call.inside() }
        "guard" -> sendAll(lock, listOf("A", "B")) { call.inside(it) }
        "info" -> return describe(lock)
        "force" -> return breakOpen(lock)
        "fenced" -> write(fenced) { call.inside(it) }
        "interrupt" -> waitInterruptibly(lock) { call.inside() }
        "coroutine" -> runBlocking(Dispatchers.Default) { runAsCoroutine(lock) { call.insideCoroutine() } }
        "shortInLong" -> shortInLong(lock) { call.inside() }
        "fencedLease" -> fencedLease(fenced) { call.inside(it) }
        "fencedReentry" -> fencedReentry(fenced) { call.inside(it) }
        "unlockTwice" -> unlockTwice(lock) { call.inside() }
        "unlockOnAnotherThread" -> unlockOnAnotherThread(lock) { call.inside() }
        "lockOnAnotherThread" -> lockOnAnotherThread(lock) { call.inside(it) }
        else -> throw IllegalArgumentException("no idiom $idiom")
    }
    return "done"
}

// Interrupts the thread where it sleeps until the lock is released. An interrupt that comes during
// a command, before or after, is a RedisException.
private fun interruptAsleep(call: Call) {
    while (call.thread.isAlive && call.thread.stackTrace.none { it.className == Semaphore::class.java.name }) Thread.sleep(1)
    call.thread.interrupt()
    say("interrupted ${call.number} ")
}

// Reads one order a line from stdin, and says what happens on stdout:
//   start NUMBER plain|shop IDIOM NAME   runs an idiom on the lock called NAME
//   end NUMBER                           lets the job of that call end
//   interrupt NUMBER                     interrupts the thread of that call
// A call says "inside NUMBER VALUE" when its job runs, "interrupted NUMBER", and "over NUMBER OUTCOME".
// The argument is the server's host and port. The end of stdin ends the program.
fun main(args: Array<String>) {
    val clients = mapOf("plain" to connect(args[0]), "shop" to connectAsShop(args[0]))
    val calls = ConcurrentHashMap<String, Call>()
    say("ready")
    for (line in generateSequence(::readLine)) {
        val words = line.split(" ")
        when (words[0]) {
            "start" -> {
                val (_, number, client, idiom, name) = words
                val thread = Thread {
                    val ended = runCatching { run(idiom, clients.getValue(client), name, calls.getValue(number)) }
                    val outcome = ended.getOrElse { if (it is OrderBusyException) "busy" else it.javaClass.simpleName }
                    say("over $number $outcome")
                }
                calls[number] = Call(number, thread)
                thread.start()
            }
            "end" -> calls.getValue(words[1]).end()
            "interrupt" -> calls.getValue(words[1]).let { Thread { interruptAsleep(it) }.start() }
        }
    }
    exitProcess(0)
}

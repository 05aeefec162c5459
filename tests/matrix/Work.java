/** The work of pattern.h from Java: java Work LIBRARY, which is work_jni.c as built. */
public class Work {
    static native long allocate(long bytes);

    static native void release(long memory);

    static native void copyIn(long memory, byte[] data);

    static native void copyOut(byte[] data, long memory);

    public static void main(String[] arguments) {
        System.load(arguments[0]);
        long sum = 0;
        for (int round = 0; round < 200; round++) {
            byte[] in = new byte[1000 + 512 * (round % 8)];
            byte[] out = new byte[in.length];
            for (int i = 0; i < in.length; i++) in[i] = (byte) (31 * round + 7 * i);
            long memory = allocate(in.length);
            copyIn(memory, in);
            copyOut(out, memory);
            release(memory);
            for (int i = 0; i < out.length; i++) sum += (out[i] & 255) * (long) (i % 251 + 1);
        }
        System.out.println(sum);
    }
}
